"""asgi-idempotency-header on Redis, as its README shows it."""

import os

from idempotency_header_middleware import IdempotencyHeaderMiddleware
from idempotency_header_middleware.backends import RedisBackend
from redis.asyncio import Redis
from starlette.middleware import Middleware

from starlette_app import application

backend = RedisBackend(redis=Redis.from_url(os.environ["REDIS_URL"]))
app = application([Middleware(IdempotencyHeaderMiddleware, backend=backend)])
