"""Tasks of test_django.py."""

import time

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task

ran = []


@task
def close(order, due=0.0):
    ran.append((order, time.time() >= due))
    return {"closed": order}


@task(priority=50)
async def coroutine(order):
    ran.append((order, True))
    return order


@task(takes_context=True)
def broken(context, order):
    raise LookupError(f"no order {order} in attempt {context.attempt}")


@task
def large(order, letters):
    ran.append(("large", True))
    return order * letters


@task
def ratio():
    ran.append(("ratio", True))
    return float("nan")


@task
def slow(seconds):
    time.sleep(seconds)
    ran.append(("slow", True))
