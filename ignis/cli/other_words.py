"""What people call a command elsewhere: who asks for ``redrive`` is told of ``ignis sideline shovel``."""

from __future__ import annotations

import click

from ignis.near_names import near_name

__all__ = ["OTHER_WORDS", "WordGroup"]

OTHER_WORDS: dict[str, str] = {
    **dict.fromkeys(("redrive", "retry", "requeue", "replay", "reprocess"), "sideline shovel"),
    **dict.fromkeys(("dlq", "deadletter", "dead-letter", "dead-letters", "failed", "failures", "errors"), "sideline list"),
    **dict.fromkeys(("recover", "recovery", "reclaim", "reap", "reaper", "cleanup", "clean", "gc", "maintenance"), "sweep"),
    **dict.fromkeys(("purge", "clear", "empty", "flush", "truncate"), "queue purge"),
    **dict.fromkeys(("delete", "remove", "rm"), "queue delete"),
    **dict.fromkeys(("create", "new", "declare"), "queue create"),
    **dict.fromkeys(("list", "ls"), "queues"),
    **dict.fromkeys(("status", "info", "metrics", "inspect"), "stats"),
    **dict.fromkeys(("show", "messages", "browse", "head"), "peek"),
    **dict.fromkeys(("get", "receive", "pull", "read", "pop", "dequeue", "subscribe", "drain"), "consume"),
    **dict.fromkeys(("send", "put", "push", "enqueue", "add"), "publish"),
    **dict.fromkeys(("run", "start", "work"), "worker"),
    **dict.fromkeys(("delayed", "delay", "eta", "countdown"), "later list"),
    **dict.fromkeys(("cron", "beat", "scheduler"), "schedules"),
    **dict.fromkeys(("server", "serve", "daemon"), "broker"),
    **dict.fromkeys(("dashboard", "ui", "web", "flower", "admin"), "console"),
    **dict.fromkeys(("search", "grep"), "find"),
    **dict.fromkeys(("watch", "monitor"), "top"),
    **dict.fromkeys(("backup", "export"), "dump"),
    **dict.fromkeys(("restore", "import"), "load"),
    **dict.fromkeys(("check", "verify", "fsck", "repair", "health"), "doctor"),
    **dict.fromkeys(("user", "users", "adduser"), "broker user"),
    **dict.fromkeys(("scale", "autoscaler"), "autoscale"),
    "pause": "queue pause", "resume": "queue resume", "cancel": "queue cancel", "revoke": "queue cancel", "drop": "sideline drop",
    # Within a group, where the word means something else than at the top.
    **dict.fromkeys(("sideline purge", "sideline delete", "sideline clear", "sideline remove"), "sideline drop"),
    **dict.fromkeys(("sideline peek", "sideline messages"), "sideline show"),
    **dict.fromkeys(("queue drop", "queue remove"), "queue delete"),
    "queue stop": "queue pause", "queue start": "queue resume", "queue show": "stats",
    **dict.fromkeys(("later delete", "later remove", "later drop"), "later cancel"),
    **dict.fromkeys(("schedules delete", "schedules drop", "schedules cancel"), "schedules remove"),
    **dict.fromkeys(("schedules create",), "schedules add"),
    **dict.fromkeys(("later show", "later peek"), "later list"),
    **dict.fromkeys(("broker start", "broker run", "broker serve"), "broker"),
    "pipeline run": "pipeline ingest", "user delete": "broker user remove", "user create": "broker user add",
}  # fmt: skip
"""The word, or the group and the word -> the command that does it."""

_AS_AT_THE_TOP = ("queue", "sideline")
"""Groups in which a word means what it means at the top."""


class WordGroup(click.Group):
    """Commands. One that is not there, but is called so elsewhere, is answered with what does it; a misspelt one, with the
    near one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            word = args[0].lower()
            meant = OTHER_WORDS.get(f"{self.name} {word}")
            if meant is None and (ctx.parent is None or self.name in _AS_AT_THE_TOP):
                meant = OTHER_WORDS.get(word)
            if meant is not None:
                raise click.UsageError(f"No such command {args[0]!r}. That is done by: ignis {meant}", ctx) from exc
            near = None if word.startswith("-") else near_name(word, self.list_commands(ctx))
            if near is None:
                raise
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {near!r}?", ctx) from exc
