"""django-idempotency-key with its cache storage on Redis, as its README shows it."""

import json
import os
import sys

import django
from django.conf import settings
from django.http import HttpResponse, JsonResponse
from django.urls import path

import payments

settings.configure(
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="of a test",
    ROOT_URLCONF=__name__,
    MIDDLEWARE=["idempotency_key.middleware.IdempotencyKeyMiddleware"],
    DATA_UPLOAD_MAX_MEMORY_SIZE=8 << 20,
    CACHES={"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["REDIS_URL"]}},
    IDEMPOTENCY_KEY={"STORAGE": {"CLASS": "idempotency_key.storage.CacheKeyStorage", "CACHE_NAME": "default"}},
)
django.setup()


def pay(request):
    try:
        order = json.loads(request.body)
    except ValueError:
        return JsonResponse({"error": "not JSON"}, status=400)
    status, headers, body = payments.pay(request.path, order)
    return JsonResponse(body, status=status, headers=headers)


def count(_request, tag):
    return HttpResponse(str(payments.count(tag)), content_type="text/plain")


urlpatterns = [path("payments", pay), path("refunds", pay), path("count/<path:tag>", count)]

if __name__ == "__main__":
    from django.core.wsgi import get_wsgi_application
    from waitress import serve

    serve(get_wsgi_application(), host="127.0.0.1", port=int(sys.argv[1]), threads=32)
