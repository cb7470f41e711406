"""A lookup of another package (`tidemark.plugins.Lookup`) as a table."""

from collections.abc import Callable, Sequence
from typing import Any

from tidemark.shared.language.values import CodecError, encode_doc
from tidemark.shared.model.values import Found
from tidemark.shared.plugins.interface import Lookup, PluginFailed
from tidemark.shared.ports.clock import Executor
from tidemark.shared.ports.tables import Names, TableRefused, TableUnavailable
from tidemark.shared.runtime.plugged import Plugged
from tidemark.shared.runtime.settings import LookupSettings


class PluggedTable:
    """`Table` by a plug-in. `make` gives a new object of it, and blocks."""

    def __init__(
        self, make: Callable[[], Lookup[Any, Any]], place: str, executor: Executor, settings: LookupSettings
    ) -> None:
        self._plugged = Plugged(make, place, executor, TableUnavailable, TableRefused)
        self._executor = executor
        self._settings = settings

    async def find(self, columns: Sequence[Names], wanted: Sequence[tuple[object, ...]]) -> Sequence[Found]:
        """See `Table.find`. PluginFailed for what are no documents of places."""
        fields = [".".join(names) for names in columns]
        answer = await self._plugged.ask("finding", lambda lookup: lookup.find(fields, wanted))
        return await self._executor.blocking(self._checked, answer)

    def _checked(self, answer: Sequence[object]) -> list[Found]:
        rows_max, place = self._settings.rows_max, self._plugged.place
        if not isinstance(answer, Sequence):
            raise PluginFailed(f"{place}: expected a list of Found from find(), found {answer!r:.200}")
        if len(answer) > rows_max:
            raise TableRefused(
                f"{place}: a batch finds more than {rows_max} documents, which is lookup.rows_max; narrow the lookup by localField and"
                " foreignField, or by $expr with $eq in a $match that comes first; or raise the bound"
            )
        found: dict[int, Found] = {}
        for each in answer:
            if not isinstance(each, Found) or type(each.place) is not int or type(each.document) is not dict:
                raise PluginFailed(f"{place}: expected Found(place, document), found {each!r:.200}")
            try:
                encode_doc(each.document)
            except (CodecError, TypeError) as error:
                raise PluginFailed(f"{place}: the document of place {each.place}: {error}") from error
            found[each.place] = each
        return [found[number] for number in sorted(found)]

    async def close(self) -> None:
        """See `Table.close`."""
        await self._plugged.close()
