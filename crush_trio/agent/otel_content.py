"""What was said to a model and by it, in the shapes that OpenTelemetry's conventions have for it.

Files are not copied into a trace: of a picture there is its type and its size.
"""

import json
from collections.abc import Sequence

from crush_trio.providers.base import ModelRequest
from crush_trio.wire.fields import Json
from crush_trio.wire.messages import (
    BinaryPart,
    FinishPart,
    ImageUrlPart,
    Part,
    ReasoningPart,
    Role,
    ShellCommandPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)


def system_instructions(request: ModelRequest) -> list[Json]:
    """Return the instructions of *request*."""
    return [_text(text) for text in request.system]


def input_messages(request: ModelRequest) -> list[Json]:
    """Return the conversation that *request* carries."""
    return [
        {"role": message.role.value, "parts": _parts(message.parts)} for message in request.messages
    ]


def output_messages(said: Sequence[Part], reason: str) -> list[Json]:
    """Return a model's answer, which ended for *reason*."""
    return [{"role": Role.ASSISTANT.value, "parts": _parts(said), "finish_reason": reason}]


def _parts(parts: Sequence[Part]) -> list[Json]:
    return [_part(part) for part in parts if not isinstance(part, FinishPart)]


def _part(part: Part) -> Json:
    match part:
        case TextPart(text=text):
            return _text(text)
        case ReasoningPart(thinking=text):
            return {"type": "reasoning", "content": text}
        case ToolCallPart():
            arguments = _object(part.input)
            return {"type": "tool_call", "id": part.id, "name": part.name, "arguments": arguments}
        case ToolResultPart():
            return {
                "type": "tool_call_response",
                "id": part.tool_call_id,
                "response": part.content,
            }
        case ImageUrlPart(url=url):
            return {"type": "uri", "modality": "image", "uri": url}
        case BinaryPart(mime_type=mime_type, data=data):
            return {"type": "binary", "mime_type": mime_type, "size": len(data)}
        case ShellCommandPart(command=command, output=output):
            return {"type": "shell_command", "command": command, "output": output}
        case FinishPart():
            return {"type": "finish"}


def _text(text: str) -> Json:
    return {"type": "text", "content": text}


def _object(text: str) -> Json:
    """Return the arguments of a call as they are meant; as text if they are no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text
