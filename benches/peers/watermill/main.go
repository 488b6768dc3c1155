// Watermill's forwarder on an outbox of its own: what is measured beside Semel's relay.
//
//	watermill DATABASE BROKER TOPIC MESSAGES
//
// It writes so many messages of 500 bytes with Watermill's publisher, forwards them to Kafka, and prints how many a
// second it forwarded, from the first tenth to the last. Settings are Watermill's own but for the size of a batch and
// the acknowledgements, which are as the relay's.
package main

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/lib/pq"
)

const (
	payloadBytes = 500
	keys         = 10_000
	// Messages in one transaction while they are written, and rows read together.
	batch = 1000
)

// counted is a publisher that counts what the broker has acknowledged.
type counted struct {
	message.Publisher
	done  atomic.Int64
	total int64
	tenth atomic.Int64
	over  chan time.Time
}

func (c *counted) Publish(topic string, messages ...*message.Message) error {
	if err := c.Publisher.Publish(topic, messages...); err != nil {
		return err
	}
	done := c.done.Add(int64(len(messages)))
	if done == c.total/10 {
		c.tenth.Store(time.Now().UnixNano())
	}
	if done == c.total {
		c.over <- time.Now()
	}
	return nil
}

func main() {
	if len(os.Args) != 5 {
		log.Fatal("usage: watermill DATABASE BROKER TOPIC MESSAGES")
	}
	count, err := strconv.ParseInt(os.Args[4], 10, 64)
	if err != nil || count < 10 {
		log.Fatal("at least ten messages")
	}
	rate, err := run(os.Args[1], os.Args[2], os.Args[3], count)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.1f\n", rate)
}

func run(database, broker, topic string, count int64) (float64, error) {
	db, err := sql.Open("postgres", database)
	if err != nil {
		return 0, err
	}
	defer db.Close()
	outbox := fmt.Sprintf("bench_%d", time.Now().UnixNano())
	schema := wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: batch}
	offsets := wsql.DefaultPostgreSQLOffsetsAdapter{}
	subscriber, err := wsql.NewSubscriber(db, wsql.SubscriberConfig{
		SchemaAdapter:    schema,
		OffsetsAdapter:   offsets,
		InitializeSchema: true,
	}, watermill.NopLogger{})
	if err != nil {
		return 0, err
	}
	if err := subscriber.SubscribeInitialize(outbox); err != nil {
		return 0, err
	}
	defer db.Exec("DROP TABLE " + schema.MessagesTable(outbox) + ", " + offsets.MessagesOffsetsTable(outbox))
	if err := fill(db, schema, outbox, topic, count); err != nil {
		return 0, err
	}

	acknowledged := kafka.DefaultSaramaSyncPublisherConfig()
	acknowledged.Producer.RequiredAcks = sarama.WaitForAll
	byKey := func(_ string, m *message.Message) (string, error) { return m.Metadata.Get("key"), nil }
	publisher, err := kafka.NewPublisher(kafka.PublisherConfig{
		Brokers:               []string{broker},
		Marshaler:             kafka.NewWithPartitioningMarshaler(byKey),
		OverwriteSaramaConfig: acknowledged,
	}, watermill.NopLogger{})
	if err != nil {
		return 0, err
	}
	out := &counted{Publisher: publisher, total: count, over: make(chan time.Time, 1)}
	relay, err := forwarder.NewForwarder(subscriber, out, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: outbox})
	if err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- relay.Run(context.Background()) }()
	select {
	case err := <-ended:
		return 0, fmt.Errorf("the forwarder ended: %w", err)
	case over := <-out.over:
		took := over.Sub(time.Unix(0, out.tenth.Load()))
		return float64(count-count/10) / took.Seconds(), relay.Close()
	}
}

// fill writes messages as a service would, in transactions.
func fill(db *sql.DB, schema wsql.SchemaAdapter, outbox, topic string, count int64) error {
	for from := int64(0); from < count; from += batch {
		tx, err := db.Begin()
		if err != nil {
			return err
		}
		publisher, err := wsql.NewPublisher(tx, wsql.PublisherConfig{SchemaAdapter: schema}, watermill.NopLogger{})
		if err != nil {
			return err
		}
		wrapped := forwarder.NewPublisher(publisher, forwarder.PublisherConfig{ForwarderTopic: outbox})
		var some []*message.Message
		for n := from; n < min(from+batch, count); n++ {
			m := message.NewMessage(watermill.NewUUID(), bytes.Repeat([]byte("x"), payloadBytes))
			m.Metadata.Set("key", fmt.Sprintf("customer-%d", n%keys))
			some = append(some, m)
		}
		if err := wrapped.Publish(topic, some...); err != nil {
			return err
		}
		if err := tx.Commit(); err != nil {
			return err
		}
	}
	return nil
}
