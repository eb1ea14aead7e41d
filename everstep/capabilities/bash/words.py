"""The reasons why `bash` cannot run a command. The model reads them, and so does the operator."""

from everstep.agent_domain.errors import EverstepError


class Unusable(EverstepError):
    """A command or a directory cannot be used; the message says what to change."""


class Unavailable(EverstepError):
    """The sandbox does not hold on this machine, so nothing is run; the message gives advice."""
