//! Which of the measurements are made, where not all are wanted.

use clap::ValueEnum;

/// A word after `--only`. Words of one kind add up; a kind of which none is named is measured whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Word {
    /// What a message costs its transaction.
    Enqueue,
    /// The relay while messages are written.
    Live,
    /// The relay on a backlog.
    Backlog,
    /// From commit to broker.
    Latency,
    /// What is left in the table of messages.
    Traces,
    /// A consumer with its ledger.
    Consumer,
    KafkaToKafka,
    /// A backlog to a NATS that syncs each message.
    Synced,
    /// Always measured; named alone, no other database is.
    Postgres,
    Mariadb,
    Sqlite,
    Jetstream,
    Kafka,
    /// A sink that counts, and nothing else: what the relay and the database do by themselves. Only if named.
    Nowhere,
}

use Word::{
    Backlog, Consumer, Enqueue, Jetstream, Kafka, KafkaToKafka, Latency, Live, Mariadb, Nowhere, Postgres,
    Sqlite, Synced, Traces,
};

const PARTS: [Word; 8] = [Enqueue, Live, Backlog, Latency, Traces, Consumer, KafkaToKafka, Synced];
const DATABASES: [Word; 3] = [Postgres, Mariadb, Sqlite];
const BROKERS: [Word; 3] = [Jetstream, Kafka, Nowhere];

/// What was chosen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice(pub(crate) Vec<Word>);

impl Choice {
    pub(super) fn wants(&self, word: Word) -> bool {
        let kind: &[Word] = [&PARTS[..], &DATABASES, &BROKERS]
            .into_iter()
            .find(|kind| kind.contains(&word))
            .expect("every word is of a kind");
        let named = kind.iter().any(|other| self.0.contains(other));
        if named { self.0.contains(&word) } else { word != Nowhere }
    }

    /// Whether a relay is measured at all.
    pub(super) fn relays(&self) -> bool {
        [Live, Backlog, Latency].into_iter().any(|part| self.wants(part))
    }

    /// Servers that are needed, as `scripts/servers.sh` calls them.
    pub(super) fn engines(&self) -> Vec<&'static str> {
        let kafka = (self.relays() && self.wants(Kafka)) || self.wants(KafkaToKafka);
        let all = [
            ("postgres", true),
            ("mariadb", self.wants(Mariadb) && (self.relays() || self.wants(Enqueue))),
            ("nats", self.wants(Synced)),
            ("kafka", kafka),
        ];
        all.into_iter().filter(|(_, needed)| *needed).map(|(engine, _)| engine).collect()
    }

    /// Whether a NATS is needed that does not sync.
    pub(super) fn jetstream(&self) -> bool {
        (self.relays() && self.wants(Jetstream)) || self.wants(Consumer)
    }
}
