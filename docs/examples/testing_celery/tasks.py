"""Celery: a task that must not be lost, and must bear to run twice. kombu is below, and needs nothing more."""

from __future__ import annotations

from celery import Celery

app = Celery("shop", set_as_current=False)
app.conf.update(
    task_default_queue="shop",
    task_acks_late=True,
    task_ignore_result=True,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True},
    worker_cancel_long_running_tasks_on_connection_loss=False,
)

paid: set[str] = set()
runs: list[str] = []


@app.task(name="pay")
def pay(order: str) -> None:
    """Takes the money once, however often it runs."""
    runs.append(order)
    paid.add(order)
