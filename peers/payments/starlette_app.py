"""The payments service as a Starlette application, to put a middleware around."""

import json

from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

import payments


async def pay(request):
    try:
        order = json.loads(await request.body())
    except ValueError:
        return JSONResponse({"error": "not JSON"}, 400)
    status, headers, body = await payments.pay_async(request.url.path, order)
    return JSONResponse(body, status, headers)


async def count(request):
    return PlainTextResponse(str(payments.count(request.path_params["tag"])))


def application(middleware):
    routes = [
        Route("/payments", pay, methods=["POST", "PUT"]),
        Route("/refunds", pay, methods=["POST"]),
        Route("/count/{tag}", count),
    ]
    return Starlette(routes=routes, middleware=middleware)
