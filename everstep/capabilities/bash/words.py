"""Why `bash` cannot run a command; the model reads it, and so does whoever has to mend it."""

from everstep.agent_domain.errors import EverstepError


class Unusable(EverstepError):
    """A command or a directory that cannot be used; the message says what to change."""


class Unavailable(EverstepError):
    """The sandbox does not hold on this machine, so nothing is run; the message says what to do."""
