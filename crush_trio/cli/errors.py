"""What can be wrong with a command. Each error says what happened and, after it, what to do."""

from crush_trio.errors import CrushError


class NotOurs(CrushError):
    """Something answers at the address, and it is another program."""

    code = "not_ours"
    message = "another program answers there"


class IdAmbiguous(CrushError):
    """The beginning of an id that several things have in common."""

    code = "id_ambiguous"
    message = "several ids begin like that"


class NothingToContinue(CrushError):
    """The last session was wanted in a directory that has none."""

    code = "nothing_to_continue"
    message = "there is no session here yet; leave out --continue to begin one"


class ModelUnknown(CrushError):
    """A model that no provider has, or more than one."""

    code = "model_unknown"
    message = "no such model"


class PromptMissing(CrushError):
    """A run was wanted, and nobody said what it is to do."""

    code = "prompt_missing"
    message = "there is no prompt; write it as arguments, or pipe it in"
