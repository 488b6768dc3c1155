"""Pays once, in the application's own transaction: python pay.py URL KEY AMOUNT

Prints what happened and what to answer: `fresh 201 {...}`, `replay 201 {...}`, or why not.
"""

import json
import sys

import psycopg


def pay(connection, tenant, key, request):
    """Returns (decision, status, body). Runs the payment at most once per key."""
    with connection.transaction():
        claim = connection.execute(
            "SELECT decision, status, body, operation FROM semel_claim('shop', %s, 'pay', %s, %s)",
            (tenant, key, request),
        ).fetchone()
        decision, status, body, operation = claim
        if decision != "run":
            return decision, status, body

        # The application's own statements: no call to another service belongs here.
        payment = connection.execute(
            "INSERT INTO payment (tenant, request) VALUES (%s, %s) RETURNING id", (tenant, request)
        ).fetchone()[0]
        answer = json.dumps({"payment": payment}).encode()
        connection.execute(
            "SELECT semel_enqueue('payments.made', %s, %s)", (f"payment-{payment}", answer)
        )

        connection.execute(
            "SELECT semel_complete(%s, 201, 'application/json', %s)", (operation, answer)
        )
    # Only here has it happened.
    return "fresh", 201, answer


if __name__ == "__main__":
    url, key, amount = sys.argv[1:]
    with psycopg.connect(url, autocommit=True) as connection:
        decision, status, body = pay(connection, "alice", key, amount.encode())
    print(decision, status or "-", bytes(body or b"-").decode())
