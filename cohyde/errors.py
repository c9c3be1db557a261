"""The one exception that the user, and not the program, can mend."""


class UserError(Exception):
    """Wrong arguments, configuration, data or surroundings: printed without a traceback, exit status 2.

    The message says what is wrong and where; ``remedy`` says what would be right.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(f"{message}\n  {remedy}" if remedy else message)
        self.message = message
        self.remedy = remedy
