"""The page of all settings, ``docs/settings.md``, from their declarations: ``python -m ignis.settings_page`` prints it."""

from __future__ import annotations

import dataclasses

from ignis.config import SECTIONS

__all__ = ["EMBEDDED_OPTIONS", "reference"]

EMBEDDED_OPTIONS = (
    (
        "sync_interval_ms",
        "1,000",
        "1 to 3,600,000",
        "how long an acknowledged message of durability interval may be unsafe in a power cut",
    ),
    (
        "max_store_bytes",
        "274,877,906,944",
        "1,048,576 to 70,368,744,177,664",
        "most living bytes of each durability; loads over it are refused",
    ),
    (
        "write_timeout_s",
        "30",
        "0.01 to 3,600",
        "longest wait for the store's lock, and for recovery by others or at opening",
    ),
    ("create", "True", "", "make the directory when there is none"),
)
"""Of `ignis.storage.embedded.options.StoreOptions`, for the page: name, default, range, what it does."""

_EXAMPLE = """\
url = "embedded:///var/lib/orders"

[queue]               # every queue
shards = 8
message_expiry = "2d" # durations: seconds, or text with ms, s, m, h, d, w

[queue.orders]        # this one
durability = "interval"

[retries.patient]     # for handlers with retry="patient"
attempts = 20
base = "10s"
max = "1h"

[sweeper]
interval_s = 300
"""


def reference() -> str:
    """The reference page of every setting, as Markdown: ``docs/settings.md`` is this text."""
    lines = [
        "# Settings",
        "",
        "Generated from `ignis/config.py` (`python -m ignis.settings_page`).",
        "Precedence: argument > environment `IGNIS_<SECTION>_<NAME>` > file > default.",
        "",
        "A name that ends in `_s` may be written without that, in the file, in variables and in arguments such as",
        '`sweeper={...}`: `interval_s = 300` is `interval = "5m"`. Seconds are numbers, or durations as text.',
        "",
        'The file is TOML. It is named by `Ignis(config="ignis.toml")`, by the variable `IGNIS_CONFIG`, or by `--config` with',
        "every command. What it names and ignis does not know is an error: at once, but in a table such as `[queue.orders]`",
        "only when that queue is made.",
        "",
        "`Ignis(...)` takes `consumer`, `publisher`, `sweeper`, `refresher`, `leader`, `schedules` and `tracing` as mappings,",
        "and `app.queue(name, ...)` takes what `[queue]` has. `[client]` and `[relay]` are options of their stores: in the",
        "URL, or `Ignis(store={...})`. The name of the application is no setting: the code says it, as in",
        "`Ignis(url, client_id=..., farm_id=...)`, and commands take `--client-id` and `--farm-id`.",
        "",
        "```toml",
        *_EXAMPLE.splitlines(),
        "```",
    ]
    for cls in SECTIONS:
        lines += ["", f"## [{cls.section}]", "", (cls.__doc__ or "").strip(), ""]
        lines += ["| setting | default | range | what it does |", "| --- | --- | --- | --- |"]
        for spec in dataclasses.fields(cls):
            meta = spec.metadata
            bounds = ", ".join(meta["choices"]) if meta["choices"] else ""
            if meta["low"] is not None:
                bounds = f"{meta['low']:,} to {meta['high']:,}"
            plain = isinstance(spec.default, (bool, str))
            default = str(spec.default) if plain else f"{spec.default:,}"
            lines.append(f"| `{spec.name}` | {default} | {bounds} | {meta['does']} |")
    lines += [
        "", "## Options of the embedded store", "",
        "They stand in its URL, `embedded:///var/lib/orders?sync_interval_ms=200`, or in `Ignis(store={...})`, which goes before",
        "the URL; not in the file. Whoever opens a directory first in a process decides for all of that process. Those of",
        "`aerospike://` are in [aerospike.md](aerospike.md); `relay://` and `ignis://` take what `[relay]` and `[client]` have.",
        "", "| option | default | range | what it does |", "| --- | --- | --- | --- |",
        *(f"| `{name}` | {default} | {bounds} | {does} |" for name, default, bounds, does in EMBEDDED_OPTIONS),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
