"""Liveness, readiness and metrics of a process, over HTTP on a port of its own (TIDEMARK_HEALTH_PORT; without it nothing is served).

| path | says |
| --- | --- |
| /healthz | 200: the process' loop turns |
| /readyz | 200, or 503 with the reason: it cannot do its work now |
| /metrics | the figures of `tidemark.shared.runtime.measures`, and the process' own, in Prometheus' text format |

No secret and no document is told here; it listens on the loopback address unless TIDEMARK_HEALTH_HOST says otherwise.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from tidemark.shared.model.spans import BOUNDS_MS, Spans
from tidemark.shared.process.listening import address_of, tls_of
from tidemark.shared.process.settings import ProcessSettings, ProcessSettingsError
from tidemark.shared.runtime.measures import Measure, Observed

PREFIX = "tidemark_"
UNAVAILABLE = 503
_FAMILIES: Final = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}


class _Figures(Collector):
    """Asks the service at each scrape: nothing is counted twice."""

    def __init__(self, service: Observed) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        yield from families(self._service.measures())


def families(measures: Iterable[Measure]) -> Iterator[Metric]:
    """Figures of one name are one family. ValueError for a figure that does not have the labels of its metric."""
    found: dict[str, CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily] = {}
    for measure in measures:
        metric, value = measure.metric, measure.value
        if set(metric.labels) != set(measure.labels):
            raise ValueError(f"{measure.name}: expected the labels {metric.labels}, found {tuple(measure.labels)}")
        family = found.get(measure.name)
        if family is None:
            family = found[measure.name] = _FAMILIES[metric.kind](
                PREFIX + measure.name, metric.text, labels=metric.labels
            )
        labels = [measure.labels[name] for name in metric.labels]
        if isinstance(value, Spans):
            family.add_metric(labels, _buckets(value), value.sum_ms / 1000)  # type: ignore[arg-type]
        else:
            family.add_metric(labels, value)  # type: ignore[arg-type, call-arg]
    yield from found.values()


def _buckets(spans: Spans) -> list[tuple[str, float]]:
    """Upper bounds in seconds, each with the number of spans up to it."""
    bounds = [str(bound_ms / 1000) for bound_ms in BOUNDS_MS]
    return list(zip([*bounds, "+Inf"], map(float, accumulate(spans.counts)), strict=True))


class HealthServer:
    """Serves one process' health."""

    def __init__(self, service: object, settings: ProcessSettings) -> None:
        self._observed = service if isinstance(service, Observed) else None
        self._settings = settings
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        if self._observed is not None:
            self._registry.register(_Figures(self._observed))
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen. ProcessSettingsError where the port is taken."""
        tls = tls_of(self._settings)
        app = web.Application(client_max_size=1024)
        app.router.add_get("/healthz", self._alive)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        host, port = self._settings.health_host, self._settings.health_port
        try:
            await web.TCPSite(self._runner, host, port, ssl_context=tls).start()
        except OSError as error:
            await self._runner.cleanup()
            message = (
                f"TIDEMARK_HEALTH_PORT: cannot listen on {host}:{port} ({error}); choose another port, or 0 for any"
            )
            raise ProcessSettingsError(message) from error
        self.url = address_of(self._runner, tls)

    async def stop(self) -> None:
        """Listen no longer."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _alive(self, _request: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def _ready(self, _request: web.Request) -> web.Response:
        reason = self._observed.unready() if self._observed is not None else ""
        return web.Response(text=f"{reason}\n", status=UNAVAILABLE) if reason else web.Response(text="ready\n")

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
