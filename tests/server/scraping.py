"""What the metrics route answers, parsed by the library that wrote it."""

from prometheus_client.parser import text_string_to_metric_families as read_text

ENDINGS = ("completed", "cancelled", "errored", "folded", "interrupted")


class Scrape:
    """One answer of the metrics route, parsed by the library that made it."""

    def __init__(self, text):
        self.text = text
        self.families = {family.name: family for family in read_text(text)}
        self._values = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def value(self, name, **labels):
        return self._values[f"crush_trio_{name}", frozenset(labels.items())]

    def get(self, name, **labels):
        return self._values.get((f"crush_trio_{name}", frozenset(labels.items())))

    def counts(self):
        """Return every sample that may only grow."""
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            if family.type in {"counter", "histogram"}
            for sample in family.samples
        }

    def ended(self):
        return {
            state: count
            for state in ENDINGS
            if (count := self.value("runs_ended_total", outcome=state))
        }


async def scrape(server):
    answer = await server.request("GET", "/v1/metrics")
    assert answer.status == 200, answer
    return Scrape(answer.body.decode())
