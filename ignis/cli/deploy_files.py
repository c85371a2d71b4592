"""``ignis deploy-files``: the files to run ignis with, written out."""

from __future__ import annotations

from pathlib import Path

import click

from ignis import deploy
from ignis.cli import exit_codes, output
from ignis.cli.state import State, common_options, pass_state
from ignis.errors import ConfigError
from ignis.storage.private_directory import check_way
from ignis.urls import masked_path

__all__ = ["deploy_files"]


@click.command("deploy-files", short_help="Writes files for systemd, Docker, Kubernetes, Prometheus.")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--replace", is_flag=True, help="Also replace files there that were changed.")
@common_options
@pass_state
def deploy_files(state: State, directory: Path, replace: bool) -> int:
    """Writes systemd units, a Dockerfile, Kubernetes manifests, alerts and a dashboard into DIRECTORY.

    They are examples to be changed: docs/deployment.md goes through them. A file that is there and was changed is left alone,
    and nothing is written then, unless --replace is said. So is a DIRECTORY in which another user could put something else in
    the place of a file.
    """
    for folder in ("", *deploy.FOLDERS):
        check_way(directory / folder / "file", "directory")
    try:
        written = deploy.write(directory, replace=replace)
    except OSError as exc:
        raise ConfigError(f"{masked_path(exc.filename or directory)} cannot be written: {exc.strerror or exc}") from exc
    if state.json:
        output.document({"directory": masked_path(directory), "files": [masked_path(path) for path in written]})
    else:
        for path in written:
            click.echo(masked_path(path))
    return exit_codes.OK
