"""The service that is protected: an effect takes 40 ms, or `pace_ms`, and happens in the middle."""

import asyncio
import os
import time
import uuid

EFFECTS = os.environ["EFFECTS"]


def half(order):
    return min(order.get("pace_ms", 40), 10_000) / 2000


def append(tag):
    """On disk when it returns."""
    with open(EFFECTS, "a", encoding="utf-8") as file:
        file.write(f"{tag}\n")
        file.flush()
        os.fdatasync(file.fileno())


def answer(path, order):
    """Status, headers and body of a payment that was made."""
    if order.get("fail") is True:
        return 500, {}, {"error": "something broke after the payment"}
    name = f"pay_{uuid.uuid4()}"
    headers = {"location": f"{path}/{name}", "x-receipt": f"receipt of {name}"}
    return 201, headers, {"id": name, "reference": order.get("reference"), "order": order}


def pay(path, order):
    time.sleep(half(order))
    append(order.get("reference", ""))
    time.sleep(half(order))
    return answer(path, order)


async def pay_async(path, order):
    await asyncio.sleep(half(order))
    append(order.get("reference", ""))
    await asyncio.sleep(half(order))
    return answer(path, order)


def count(tag):
    if not os.path.exists(EFFECTS):
        return 0
    with open(EFFECTS, encoding="utf-8") as file:
        return sum(1 for line in file if line.rstrip("\n") == tag)
