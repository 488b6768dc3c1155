"""fastapi-idempotency with its defaults, as its README shows it."""

from fastapi_idempotency import IdempotencyMiddleware
from starlette.middleware import Middleware

from starlette_app import application

app = application([Middleware(IdempotencyMiddleware)])
