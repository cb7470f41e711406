"""Schemas of Protocol Buffers compiled by Google's compiler, in a process of its own: what a text does to it ends that process alone."""

import re
import subprocess
import sys
import tempfile
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from tidemark.shared.language.protobuf import ProtobufSchemaError
from tidemark.shared.language.protobuf.messages import Messages, messages_of

_COMPILE_S_MAX: Final = 30
"""A schema takes some 0.2 s, most of it Python's start."""
_OWN: Final = "schema.proto"
_WORDS_MAX: Final = 500
"""Of the compiler's words in a message."""
_LOGGED: Final = re.compile(r"WARNING: All log messages|[IWEF][0-9]{4} ")
"""Lines of its library's log, which say nothing of the schema."""
_CONFLUENT: Final = {
    "confluent/type/decimal.proto": """syntax = "proto3";
package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
""",
    "confluent/meta.proto": """syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
""",
}
"""Files that registries know without being told."""


def compiled(text: str, imports: Mapping[str, str]) -> Messages:
    """The messages of a schema. Blocks for some 0.2 s.

    text: as the registry has it: the schema's own text, or a `FileDescriptorProto` in base64, as some producers register it. imports:
    the same of the files that it imports, and of those that these import, by the names under which they are imported; Google's own
    are there.

    Raises:
        ProtobufSchemaError: the compiler's words.
    """
    files = {**_CONFLUENT, **imports}
    own = _OWN
    while own in files:
        own = f"_{own}"
    with tempfile.TemporaryDirectory(prefix="tidemark-") as folder:
        parsed = FileDescriptorSet()
        for name, content in {**files, own: text}.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\0" in name or not path.name:
                raise ProtobufSchemaError(
                    f"a schema imports {name!r:.100}: expected a path below the schema's own folder"
                )
            if (file := _parsed(content)) is not None:
                file.name = name
                parsed.file.append(file)
                continue
            there = Path(folder) / path
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_text(content)
        out, given = Path(folder) / "out", Path(folder) / "in"
        given.write_bytes(parsed.SerializeToString())
        command = [sys.executable, "-I", "-m", "grpc_tools.protoc", f"-I{folder}", "--include_imports"]
        command.append(f"--descriptor_set_in={given}")
        try:
            done = subprocess.run(  # noqa: S603 - this interpreter, and names that are checked
                [*command, f"--descriptor_set_out={out}", own],
                capture_output=True,
                timeout=_COMPILE_S_MAX,
                check=False,
                cwd=folder,
            )
        except subprocess.TimeoutExpired:
            raise ProtobufSchemaError(f"the compiler of Protobuf took more than {_COMPILE_S_MAX} s") from None
        if done.returncode != 0:
            lines = done.stderr.decode(errors="replace").replace(f"{folder}/", "").splitlines()
            words = "; ".join(line.strip() for line in lines if line.strip() and not _LOGGED.match(line))
            raise ProtobufSchemaError(
                words[:_WORDS_MAX] or f"the compiler of Protobuf ended with status {done.returncode}"
            )
        return messages_of(out.read_bytes())


def _parsed(content: str) -> FileDescriptorProto | None:
    """A file that is given parsed; None for a text. No text is base64: it has a blank, or a brace."""
    try:
        return FileDescriptorProto.FromString(b64decode(content, validate=True)) if content else None
    except (ValueError, DecodeError):
        return None
