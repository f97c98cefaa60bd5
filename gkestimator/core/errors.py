"""The errors of gkestimator: one small tree.

Every message is one line that names the thing (file, node, field), what was found and what was expected. The
command line prints it as it stands and exits with the class's ``exit_code``.
"""

from __future__ import annotations

from gkestimator.core.escaping import one_line as one_line  # most who raise errors need it


class GkestimatorError(Exception):
    """Base of every error raised on purpose; its text is one line."""

    exit_code = 2

    def __init__(self, message: object) -> None:
        super().__init__(one_line(message))


class UsageError(GkestimatorError):
    """An argument or option is wrong: unknown GPU, absurd batch size, impossible combination."""


class NoBatchError(UsageError):
    """The batch size of a model without a batch dimension is to be changed."""


class ModelError(GkestimatorError):
    """A model file cannot be read or is not a valid model."""


class ShapeError(ModelError):
    """The shapes of an operator's inputs contradict each other or its attributes."""


class UnboundDimensionError(ModelError):
    """A symbolic dimension has no value; the message says how to give it one."""


class LimitError(ModelError):
    """A bound on untrusted input is exceeded (nodes, inlining, trip count, element count, ...)."""


class UnsupportedOperatorError(ModelError):
    """The model holds operators that no lowering rule covers; all types are listed.

    ``operators`` are the unknown types as ``domain.op_type`` (``op_type`` alone for the standard domain).
    """

    def __init__(self, message: object, *, operators: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.operators = operators


class SpecError(GkestimatorError):
    """A GPU specification or runtime profile file is malformed."""


class BundleError(GkestimatorError):
    """An estimator bundle is missing, malformed, not finite or too large."""


class TableError(GkestimatorError):
    """A requirement table or kernel dataset breaks its schema."""


class DocumentError(GkestimatorError):
    """A workload, cluster, plan or other document breaks its form."""


class OutputError(GkestimatorError):
    """An output cannot be written; nothing is left half-written."""


class DefectError(GkestimatorError):
    """An exception that nobody raised on purpose, which is its ``__cause__``."""

    def __init__(self, error: Exception) -> None:
        super().__init__(
            f"a defect of gkestimator, please report it with its traceback: {type(error).__name__}: {error}"
        )
        self.__cause__ = error


def error_of_one(error: Exception) -> GkestimatorError:
    """Return the error that one of several inputs ended with, so that the others go on; a defect is called one."""
    return error if isinstance(error, GkestimatorError) else DefectError(error)


class GkestimatorWarning(UserWarning):
    """Something a user should know that does not stop the estimate."""
