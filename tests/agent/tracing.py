"""An agent that is traced: its spans, by name and as a tree."""

from contextlib import asynccontextmanager

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from crush_trio.agent.otel import OtelSpans
from crush_trio.testing.server.agent import open_test_agent


class Trace:
    """The spans of a test, by name and as a tree."""

    def __init__(self, content=False):
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.spans = OtelSpans(provider.get_tracer("test"), content=content)

    @property
    def finished(self):
        return self._exporter.get_finished_spans()

    def all(self, name):
        return [span for span in self.finished if span.name == name]

    def one(self, name):
        [span] = self.all(name)
        return span

    def parent(self, span):
        by_id = {each.context.span_id: each for each in self.finished}
        return None if span.parent is None else by_id[span.parent.span_id]

    def lineage(self, span):
        """Return the names from the root down to *span*."""
        names = []
        while span is not None:
            names.insert(0, span.name)
            span = self.parent(span)
        return names

    def text(self):
        """Return everything that the spans say."""
        return "\n".join(span.to_json() for span in self.finished)


@asynccontextmanager
async def open_traced_agent(model, tools=(), *, content=False, **more):
    traced = Trace(content)
    async with open_test_agent(model, tools, **more) as bench:
        bench.agent.desk.spans = traced.spans
        yield bench, traced
