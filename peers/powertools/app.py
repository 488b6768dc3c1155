"""A Lambda function with the idempotency of Powertools on Redis, and a small server that invokes it.

The server does what API Gateway and Lambda do: a request becomes an event, an invocation has an id and a time limit, and
an exception becomes an answer. The statuses for a duplicate and for another payload are the server's; Powertools raises.
"""

import json
import os
import sys
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyAlreadyInProgressError,
    IdempotencyValidationError,
)
from aws_lambda_powertools.utilities.idempotency.persistence.cache import CachePersistenceLayer
from redis import Redis

import payments

LIMIT_SECONDS = 5
store = CachePersistenceLayer(client=Redis.from_url(os.environ["REDIS_URL"]))
# With validation, this version refuses every retry of a completed request: its cache layer does not keep the hash when it
# stores the answer. It is therefore off unless it is asked for.
validated = "powertools_json(body)" if os.environ.get("POWERTOOLS_VALIDATE") == "1" else ""
config = IdempotencyConfig(event_key_jmespath='headers."idempotency-key"', payload_validation_jmespath=validated)


class Context:
    """What Lambda passes to a handler."""

    function_name = "payments"

    def __init__(self):
        self.aws_request_id = str(uuid.uuid4())
        self.deadline = time.monotonic() + LIMIT_SECONDS

    def get_remaining_time_in_millis(self):
        return max(0, int((self.deadline - time.monotonic()) * 1000))


@idempotent(persistence_store=store, config=config)
def handler(event, context):
    status, headers, body = payments.pay(event["path"], json.loads(event["body"]))
    if status >= 500:
        raise RuntimeError(body["error"])
    return {"statusCode": status, "headers": headers, "body": json.dumps(body)}


class Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.say(200, {}, str(payments.count(unquote(self.path.removeprefix("/count/")))))

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        headers = {name.lower(): value for name, value in self.headers.items()}
        event = {"path": self.path, "httpMethod": self.command, "headers": headers, "body": body}
        try:
            answer = handler(event, Context())
        except IdempotencyAlreadyInProgressError as error:
            return self.say(409, {}, json.dumps({"error": str(error)}))
        except IdempotencyValidationError as error:
            return self.say(422, {}, json.dumps({"error": str(error)}))
        except ValueError as error:
            return self.say(400, {}, json.dumps({"error": str(error)}))
        except Exception as error:
            return self.say(500, {}, json.dumps({"error": str(error)}))
        self.say(answer["statusCode"], answer["headers"], answer["body"])

    do_PUT = do_POST

    def say(self, status, headers, body):
        data = body.encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers, "content-length": len(data)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


# Five waiting connections are its default; the rest of a race would be reset.
ThreadingHTTPServer.request_queue_size = 128
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Server).serve_forever()
