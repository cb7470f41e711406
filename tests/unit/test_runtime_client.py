"""What a client takes for the answer to its request."""

import asyncio

import pytest

from tests.harness.installation import installed
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import CreateProcessor, DropProcessor
from tidemark.shared.runtime.client import RequestRefused

DOCUMENT = """
connections: {o: {type: files, path: /nowhere}}
pipeline: [{$source: {documents: [{a: 1}]}}, {$emit: {connectionName: o, path: x, format: json}}]
"""


@pytest.mark.parametrize("first", [0, 1])
def test_an_answer_to_another_processors_request_of_the_same_id_is_not_taken(first: int) -> None:
    """Ids are their senders' choice: of two at the same time one is refused, the other carried out, and each hears its own answer."""

    async def story(world: VirtualWorld) -> None:
        async with installed(world.clock, world.executor) as there:
            asked = [
                there.client.request(CreateProcessor("same", ProcessorName("a.one"), DOCUMENT)),
                there.client.request(DropProcessor("same", ProcessorName("b.none"))),
            ]
            answers = await asyncio.gather(asked[first], asked[1 - first], return_exceptions=True)
            created, dropped = answers[first], answers[1 - first]
            assert created is None
            assert isinstance(dropped, RequestRefused)
            assert "b.none" in str(dropped)

    run_virtual(story)
