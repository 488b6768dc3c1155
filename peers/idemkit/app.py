"""idemkit on Redis with its defaults, as its README shows it."""

import os

from idemkit import IdempotencyMiddleware, RedisBackend
from starlette.middleware import Middleware

from starlette_app import application

backend = RedisBackend.from_url(os.environ["REDIS_URL"])
app = application([Middleware(IdempotencyMiddleware, backend=backend)])
