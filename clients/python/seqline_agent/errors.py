"""Why an agent cannot go on."""


class SeqlineError(Exception):
    """Why `run` cannot go on."""


class Refused(SeqlineError):
    """The server does not want this client to come again, for another reason than those below."""


class InvalidFrame(SeqlineError):
    """4002: the server does not understand this client. One of both is too old."""


class AlreadyIdentified(SeqlineError):
    """4005: this client has identified twice."""


class Unauthenticated(SeqlineError):
    """4012: the token is not, or no longer, good."""


class ConsumerReplaced(SeqlineError):
    """4015: somebody else has taken the consumer. Do not come again at once, or the two take it from each other for ever."""


class SessionReplaced(SeqlineError):
    """4017: another connection has resumed this session."""


class FrameTooLarge(SeqlineError):
    """1009: a frame is larger than the other side takes."""


class ResyncRequired(SeqlineError):
    """Events were lost, and there is no `on_resync`."""


class Lost(Exception):
    """Nothing comes through, and may later: not before so many seconds, if the server has said so. It never leaves `run`."""

    def __init__(self, why: str, after: float = 0.0):
        super().__init__(why)
        self.after = after
