"""What long work shows while it runs, on standard error: bars where there is a terminal, plain lines elsewhere."""

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from cohyde.dag import events
from cohyde.dag.plan import Plan
from cohyde.dag.runner import RunResult
from cohyde.dag.sweep import Union
from cohyde.progress import Silent
from cohyde.terminal import compact, duration, err, key_metric, rate

PLAIN_EVERY_SECONDS = 30


class HowFar(ProgressColumn):
    """``12/40 steps  1.5/s``; the time passed, where a stage has not yet said how much there is to do."""

    def render(self, task: Task) -> Text:
        """The cell of one stage."""
        if task.total is None:
            counted = f"{task.completed:,.0f} {task.fields['what']}  " if task.completed else ""
            return Text(counted + duration(task.elapsed), style="dim")
        speed = f"  {rate(task.speed)}" if task.speed else ""
        return Text(f"{task.completed:.0f}/{task.total:.0f} {task.fields['what']}{speed}", style="green")


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("  {task.description}"),
        BarColumn(bar_width=12),
        HowFar(),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class Work(Silent):
    """One long piece of work outside a run. Use it as a context manager and hand it over as its ``Progress``."""

    def __init__(self, title: str) -> None:
        """``title`` says what is done, in a word or two."""
        self.title, self.console = title, err()
        self.bars = _bars(self.console)
        self.said = time.monotonic()

    def __enter__(self) -> "Work":
        """Start drawing."""
        self.bar = self.bars.add_task(self.title, total=None, what="")
        self.bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop drawing; what was said stays."""
        self.bars.stop()

    def update(self, done: float, total: float, what: str = "") -> None:
        """Move the bar; where there is no terminal, say a line every half minute. A total of 0 is not known yet."""
        self.bars.update(self.bar, completed=round(done), total=round(total) or None, what=what)
        if self.bars.disable and time.monotonic() - self.said >= PLAIN_EVERY_SECONDS:
            self.said = time.monotonic()
            of = f" of {total:,.0f}" if total else ""
            self.log(f"{self.title}: {done:,.0f}{of} {what}")

    def log(self, message: str) -> None:
        """One dim line."""
        self.bars.console.print(Text(message, style="dim"), soft_wrap=True)

    def warn(self, message: str) -> None:
        """One yellow line."""
        self.bars.console.print(Text("warning: ", style="yellow") + Text(message), soft_wrap=True)


class Live:
    """Listens to a run's events and renders them. Use it as a context manager and hand it over as ``on_event``."""

    def __init__(self, run: str, plan: Plan, kinds: dict[str, str], labels: Mapping[str, str] | None = None) -> None:
        """``kinds`` are short titles by stage id; ``labels``, by node name, stand for the ids where given."""
        self.run, self.kinds = run, kinds
        self.labels = labels or {name: node.id for name, node in plan.nodes.items()}
        self.console = err()
        self.total, self.done = len(plan.nodes), 0
        self.bars: dict[str, TaskID] = {}
        self.said: dict[str, float] = {}
        self.width = max(map(len, self.labels.values()), default=4)
        self.started, self.heard = time.monotonic(), False
        self.progress = _bars(self.console)

    def __enter__(self) -> "Live":
        """Start drawing."""
        self.progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop drawing; what was said stays."""
        self.progress.stop()

    def end(self, result: RunResult) -> None:
        """Say in one line how it went."""
        count = sum(state.state == "done" for state in result.states)
        if not self.heard:
            text = f"{self.run}: all {count} stages are done already"
        else:
            text = f"{self.run}: {count} of {self.total} stages done, {duration(time.monotonic() - self.started)}"
        self.progress.console.print(Text(text, style="dim"), soft_wrap=True)

    def __call__(self, event: events.Event) -> None:
        """Render one event."""
        self.heard = True
        match event:
            case events.RayStarting():
                self._ray(event)
            case events.Waiting():
                self._line(event, Text(f"{event.holder} is at it: waiting for that", style="dim"), "·")
            case events.Stopping():
                self._stopping(event)
            case events.Started():
                self._start(event)
            case events.Progressed():
                self._progress(event)
            case events.Warned():
                self._line(event, Text(event.message, style="yellow"), "!")
            case events.Finished():
                self._finish(event)
            case events.Failed():
                self._fail(event)
            case events.Blocked():
                self._block(event)

    def _ray(self, event: events.RayStarting) -> None:
        self.done = event.done
        where = f"connecting to Ray at {event.address}" if event.address else "starting a local Ray"
        shared = f"{event.done} of {self.total} stages are done already; " if event.done else ""
        self.progress.console.print(Text(f"{self.run}: {shared}{event.todo} to run; {where} …", style="dim"))

    def _stopping(self, event: events.Stopping) -> None:
        text = f"{self.run}: stopping; {compact(event.ids)} may take {duration(event.seconds)} to save a checkpoint"
        self.progress.console.print(Text(f"{text} (Ctrl-C again: at once)", style="yellow"), soft_wrap=True)

    def _start(self, event: events.Started) -> None:
        title = f"{self._label(event):<{self.width}}  {self.kinds.get(event.id, '')}"
        self.bars[event.name] = self.progress.add_task(title, total=None, what="")
        self.said[event.name] = time.monotonic()
        if self.progress.disable:
            self._line(event, Text(f"{self.kinds.get(event.id, '')} started", style="dim"), "·")

    def _progress(self, event: events.Progressed) -> None:
        if event.name in self.bars:
            self.progress.update(
                self.bars[event.name], completed=round(event.done), total=round(event.total), what=event.what
            )
        now = time.monotonic()
        if self.progress.disable and now - self.said.get(event.name, now) >= PLAIN_EVERY_SECONDS:
            self.said[event.name] = now
            self._line(event, Text(f"{event.done:.0f} of {event.total:.0f} {event.what}", style="dim"), "·")

    def _finish(self, event: events.Finished) -> None:
        self._end_bar(event)
        self.done += 1
        metric = key_metric(dict(event.metrics))
        parts = [self.kinds.get(event.id, ""), duration(event.seconds), metric]
        count = Text(f"{self.done:>3}/{self.total} ", style="dim")
        self._line(event, Text("  ".join(part for part in parts if part)), "✓", "green", count)

    def _fail(self, event: events.Failed) -> None:
        self._end_bar(event)
        again = "; trying again" if event.retrying else ""
        self._line(event, Text(f"failed: {event.failure.error}{again}", style="red"), "✗", "bold red")

    def _block(self, event: events.Blocked) -> None:
        self._line(event, Text(f"blocked by {event.by}", style="yellow"), "–")

    def _end_bar(self, event: events.StageEvent) -> None:
        bar = self.bars.pop(event.name, None)
        if bar is not None:
            self.progress.remove_task(bar)

    def _label(self, event: events.StageEvent) -> str:
        return self.labels.get(event.name, event.id)

    def _line(self, event: events.StageEvent, text: Text, sign: str, style: str = "", count: Any = "") -> None:
        label = f"{self._label(event):<{self.width}}  "
        head = Text(f"{sign} ", style=style) + (count or Text("")) + Text(label, style="bold")
        self.progress.console.print(head + text, soft_wrap=True)


class SweepLive(Live):
    """The same for many runs: what a failure blocks is counted, for it may be thousands of stages."""

    def __init__(self, union: Union, kinds: dict[str, str]) -> None:
        """Stages are called by their labels in the union."""
        super().__init__(union.name, union.plan, kinds, union.labels)
        self.blocked: Counter[str] = Counter()

    def __exit__(self, *exception: object) -> None:
        """Tell what is still to be told, and stop drawing."""
        self._tell_blocked()
        super().__exit__(*exception)

    def __call__(self, event: events.Event) -> None:
        """Render one event, and first what the last failure blocked, once that is all known."""
        if not isinstance(event, events.Blocked):
            self._tell_blocked()
        super().__call__(event)

    def _block(self, event: events.Blocked) -> None:
        self.blocked[event.by] += 1

    def _tell_blocked(self) -> None:
        for by, count in self.blocked.items():
            what = "stage is" if count == 1 else "stages are"
            self.progress.console.print(Text(f"– {count} {what} blocked by {by}", style="yellow"))
        self.blocked.clear()
