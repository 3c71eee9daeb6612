"""The poller as an Azure Function: a timer calls it, the platform may end it at any instant.

Beside it stand `poller.py` and a `host.json`; `requirements.txt` has azure-functions, holdfast[sql] and the driver of
the database. ORDERS_DSN and ORDERS_STATE are settings of the app, the state is a store that outlives the instance.
"""

import logging

import azure.functions as func  # type: ignore[import-not-found]
from poller import orders  # type: ignore[import-not-found]

app = func.FunctionApp()
log = logging.getLogger("orders")


@app.timer_trigger(schedule="0 * * * * *", arg_name="timer", run_on_startup=False)
def tick(timer: func.TimerRequest) -> None:  # noqa: ARG001 - the platform gives it
    """Once a minute. Two instances at once do no harm: the second finds the lease held, and has nothing to do."""
    told = orders.tick(deadline="4m")  # a function on the consumption plan has five minutes
    log.info("%s", told)
    if told.exit_code == 1:
        raise RuntimeError(f"orders: {told}")  # shown as a failed invocation: a person has to look
