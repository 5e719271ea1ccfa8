"""The one tree of errors that users can meet. A message names the thing, what was found, what was
wanted and the remedy. Knows nothing of HTTP beyond the status that an error maps to."""


class RelightError(Exception):
    """Base of all errors that a user, a file or a machine can cause.

    `param` names the request field or setting at fault, `status` and `code` are what the HTTP
    server answers with, `kind` is OpenAI's `error.type`.
    """

    status = 500
    code = "internal_error"
    kind = "server_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class BadRequest(RelightError):
    """A request that can never be served as it stands."""

    status = 400
    code = "invalid_request_error"
    kind = "invalid_request_error"


class Unsupported(BadRequest):
    """A field or value that exists in the protocol and is not built here."""

    code = "unsupported_parameter"


class TooLong(BadRequest):
    """A prompt, or a prompt and its output, longer than the context: `num_tokens` where `limit` are
    allowed; 0 where it is not known."""

    code = "context_length_exceeded"

    def __init__(
        self, message: str, *, param: str | None = None, num_tokens: int = 0, limit: int = 0
    ) -> None:
        super().__init__(message, param=param)
        self.num_tokens = num_tokens
        self.limit = limit


class Unauthorized(RelightError):
    """The request has no key, or one that is not among the server's."""

    status = 401
    code = "invalid_api_key"
    kind = "authentication_error"


class WrongHost(RelightError):
    """The request asks for a host that this server is not."""

    status = 403
    code = "host_not_allowed"
    kind = "permission_error"


class ModelNotFound(RelightError):
    """The request names a model that this server does not serve."""

    status = 404
    code = "model_not_found"
    kind = "invalid_request_error"


class NotFound(RelightError):
    """There is nothing at this path."""

    status = 404
    code = "not_found"
    kind = "invalid_request_error"


class WrongMethod(RelightError):
    """There is something at this path, for other methods."""

    status = 405
    code = "method_not_allowed"
    kind = "invalid_request_error"


class TooSlow(RelightError):
    """The client went silent while it sent a request."""

    status = 408
    code = "request_timeout"
    kind = "invalid_request_error"


class TooLarge(RelightError):
    """A request body above the limit."""

    status = 413
    code = "request_too_large"
    kind = "invalid_request_error"


class WrongMediaType(RelightError):
    """A body that is not said to be JSON."""

    status = 415
    code = "unsupported_media_type"
    kind = "invalid_request_error"


class Overloaded(RelightError):
    """The queue is full; the same request may succeed `retry_after_s` later."""

    status = 429
    code = "rate_limit_exceeded"
    kind = "rate_limit_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int = 1) -> None:
        super().__init__(message, param=param)
        self.retry_after_s = retry_after_s


class DeadlinePassed(RelightError):
    """The request was not answered in the time that it, or the server, gives it."""

    status = 504
    code = "deadline_passed"


class Unavailable(RelightError):
    """Loading, draining, or the engine is gone."""

    status = 503
    code = "service_unavailable"


class StepFailed(RelightError):
    """A step of the engine failed; the requests in it end with this reason."""

    code = "step_failed"


class BadConfig(RelightError):
    """A config.json that is not a model that we serve, or that contradicts itself."""

    code = "bad_config"


class BadCheckpoint(RelightError):
    """A checkpoint file that is missing, damaged, or of another model."""

    code = "bad_checkpoint"


class BadSetting(RelightError):
    """A command line flag, variable or settings file entry that cannot take effect."""

    code = "bad_setting"


class CannotFit(RelightError):
    """The model or its state does not fit in the memory there is."""

    code = "cannot_fit"
