"""A payments service that can be asked what became of an attempt.

    python3 service.py PORT DATABASE

Needs nothing but Python 3.8 or later. It stands behind `semel gateway` with
`recovery = "ask:http://127.0.0.1:PORT/reconcile"`; docs/reconcile.md explains the contract. One row per
operation is the receipt, the fence and the lock in one: charging and answering a question both begin
with it.
"""

import json
import sqlite3
import sys
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SCHEMA = """
CREATE TABLE IF NOT EXISTS receipts (
    derived_key     TEXT PRIMARY KEY,            -- Semel-Derived-Key: the same for every attempt
    refused_through INTEGER NOT NULL DEFAULT 0,  -- attempts with tokens up to this one are refused
    token           INTEGER,                     -- the attempt that began it
    status          INTEGER,                     -- the answer it got; NULL while the bank has not said
    body            TEXT
);
CREATE TABLE IF NOT EXISTS charges (id INTEGER PRIMARY KEY, derived_key TEXT, amount INTEGER);
"""


def open_database(path):
    database = sqlite3.connect(path, isolation_level=None, timeout=10)
    database.execute("PRAGMA synchronous = FULL")
    return database


def take_row(database, headers):
    """Begins an attempt, or says why not. Runs inside the transaction of the effect."""
    if "Semel-Derived-Key" not in headers or "Semel-Token" not in headers:
        return 400, {"error": "come through the gateway, with an Idempotency-Key"}
    derived_key, token = headers["Semel-Derived-Key"], int(headers["Semel-Token"])
    database.execute("INSERT INTO receipts (derived_key) VALUES (?) ON CONFLICT DO NOTHING", [derived_key])
    refused_through, begun, status, body = database.execute(
        "SELECT refused_through, token, status, body FROM receipts WHERE derived_key = ?", [derived_key]
    ).fetchone()
    if status is not None:
        return status, json.loads(body)
    if token <= refused_through:
        error = f"attempt {token} came too late: tokens up to {refused_through} are refused"
        return 409, {"error": error}, "nothing-happened"
    if begun is not None:
        return 409, {"error": "the bank has not answered yet"}
    database.execute("UPDATE receipts SET token = ? WHERE derived_key = ?", [token, derived_key])
    return None


def keep_receipt(database, derived_key, amount, status, body):
    database.execute("INSERT INTO charges (derived_key, amount) VALUES (?, ?)", [derived_key, amount])
    database.execute(
        "UPDATE receipts SET status = ?, body = ? WHERE derived_key = ?", [status, json.dumps(body), derived_key]
    )


def charge(database, headers, request):
    """The effect is in our own database: receipt and charge are one transaction."""
    told = take_row(database, headers)
    if told is not None:
        return told
    body = {"charged": request["amount"]}
    keep_receipt(database, headers["Semel-Derived-Key"], request["amount"], 201, body)
    return 201, body


def transfer(database, headers, request):
    """The effect is at a bank, which answers later: until then nobody can tell."""
    return take_row(database, headers) or (504, {"error": "the bank has not answered yet"})


def bank_says(database, headers, request):
    """The bank's own call, when it has decided."""
    body = {"transferred": request["amount"]}
    keep_receipt(database, request["derived_key"], request["amount"], 201, body)
    return 200, {}


def reconcile(database, headers, question):
    """Done, never (and late attempts are refused from now on), or cannot tell."""
    derived_key, token = question["derived_key"], question["token"]
    # The fence is set before we look: whoever comes after this with such a token is refused.
    database.execute(
        """INSERT INTO receipts (derived_key, refused_through) VALUES (?, ?)
           ON CONFLICT (derived_key) DO UPDATE
               SET refused_through = max(refused_through, excluded.refused_through)
               WHERE token IS NULL""",
        [derived_key, token],
    )
    refused_through, begun, status, body = database.execute(
        "SELECT refused_through, token, status, body FROM receipts WHERE derived_key = ?", [derived_key]
    ).fetchone()
    if status is not None:
        response = {"status": status, "headers": {"content-type": "application/json"}, "body": body}
        return 200, {"answer": "done", "response": response}
    if begun is not None:
        return 200, {"answer": "cannot-tell", "reason": "the bank has not answered yet"}
    return 200, {"answer": "never", "refused_through": refused_through}


ROUTES = {"/charges": charge, "/transfers": transfer, "/bank": bank_says, "/reconcile": reconcile}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path not in ROUTES:
            return self.answer(404, {"error": "no such path"})
        # Closing without a commit, when something fails, rolls back.
        with closing(open_database(sys.argv[2])) as database:
            database.execute("BEGIN IMMEDIATE")
            answer = ROUTES[self.path](database, self.headers, request)
            database.execute("COMMIT")
        self.answer(*answer)

    def do_GET(self):
        with closing(open_database(sys.argv[2])) as database:
            (count,) = database.execute("SELECT count(*) FROM charges").fetchone()
        self.answer(200, {"charges": count})

    def answer(self, status, answer, hint=None):
        body = json.dumps(answer).encode()
        self.send_response(status)
        if hint is not None:
            # It is believed only beside the nonce of its attempt.
            self.send_header("Semel-Hint", hint)
            self.send_header("Semel-Nonce", self.headers.get("Semel-Nonce", ""))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    open_database(sys.argv[2]).executescript(SCHEMA)
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
