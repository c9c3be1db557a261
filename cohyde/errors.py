"""Exceptions that say more than that something went wrong."""


class UserError(Exception):
    """Wrong arguments, configuration, data or surroundings: printed without a traceback, exit status 2.

    The message says what is wrong and where; ``remedy`` says what would be right.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(f"{message}\n  {remedy}" if remedy else message)
        self.message = message
        self.remedy = remedy


class NoAnswerError(UserError):
    """A server that is asked for something does not answer; it may, another time. ``why`` says no address."""

    def __init__(self, server: str, why: str, remedy: str) -> None:
        super().__init__(f"{server}: {why}", remedy)
        self.why = why


class DivergedError(RuntimeError):
    """Training ran into numbers that are none.

    It would again, so it is not retried; what the stage has written so far, such as its last good checkpoint, is kept
    beside the attempt's log.
    """


class ClusterLostError(RuntimeError):
    """The Ray that a run was connected to has ended. What is finished stays, and another Ray goes on from there."""


class Interrupted(RuntimeError):
    """A stage stopped because it was asked to, after it had saved what a later attempt goes on from: no failure."""
