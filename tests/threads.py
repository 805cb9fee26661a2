"""Calls at the same time."""

import threading


def in_threads(*calls):
    """What each call returned or raised, started at the same time."""
    outcomes = [None] * len(calls)
    gate = threading.Barrier(len(calls))

    def work(k, call):
        gate.wait()
        try:
            outcomes[k] = call()
        except Exception as error:
            outcomes[k] = error

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes
