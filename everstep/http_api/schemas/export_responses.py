"""The response of an export."""

from pydantic import Field

from everstep.client.exported_runs import ExportedRun, ExportForm
from everstep.client.run_exports import Shape
from everstep.http_api.schemas.text import ResponseModel


class ExportedFile(ResponseModel):
    """A file of an export."""

    name: str
    content: str


class ReplacedSecrets(ResponseModel):
    """Secrets that were replaced."""

    place: str = Field(description="Where they were, in words.")
    count: int


class ExportResponse(ResponseModel):
    """An execution as files."""

    execution_id: str
    form: ExportForm
    files: list[ExportedFile]
    redacted: list[ReplacedSecrets] = Field(description="The secrets that were replaced by `[redacted]`.")
    notes: list[str] = Field(description="What is missing, one sentence each.")

    @classmethod
    def of(cls, run: ExportedRun, form: ExportForm, shape: Shape) -> "ExportResponse":
        """The response for a run."""
        return cls(
            execution_id=str(run.record.ref.execution_id),
            form=form,
            files=[ExportedFile(name=name, content=text) for name, text in run.files(form, shape).items()],
            redacted=[
                ReplacedSecrets(place=place, count=run.redacted[place]) for place in sorted(run.redacted)
            ],
            notes=list(run.notes_about(form)),
        )
