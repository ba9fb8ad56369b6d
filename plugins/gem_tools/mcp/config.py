"""Server configurations: reading and checking the settings of MCP servers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gem_core.errors import ConfigError
from gem_core.records.serialize import without_secrets
from gem_tools.arguments import did_you_mean, string_dict, string_list
from gem_tools.mcp.oauth import check_oauth

__all__ = ["Servers", "server_configs"]

Servers = Mapping[str, Mapping[str, Any]] | str | os.PathLike[str]
"""Configurations by server name, or a JSON file that has them under `mcpServers`."""

_KEYS = {"command": ("command", "args", "env", "cwd"), "url": ("url", "headers", "oauth")}
_TRANSPORTS = {
    "command": ("stdio",),
    "url": ("http", "streamable-http", "streamable_http", "streamableHttp"),
}
"""The values of `type` and `transport` in the files of other MCP clients."""
_OTHER_CLIENTS = {
    "disabled": "remove the server",
    "timeout": "set `seconds` beside `servers`",
    "autoApprove": "gem runs every call; select the tools with `only` beside `servers`",
    "alwaysAllow": "gem runs every call; select the tools with `only` beside `servers`",
}
"""Keys of other MCP clients that gem accepts only if they are empty or false, and what to do."""


def server_configs(servers: Servers | None, single: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the checked configurations by server name.

    `single` has the arguments for a single server, which `servers` excludes.
    """
    of_single = [key for key, value in single.items() if value]
    if servers and of_single:
        raise ConfigError(
            f"the tool 'mcp' takes either servers or {', '.join(of_single)}; got both: "
            "put all settings of a server into servers={'NAME': {...}}"
        )
    configs: dict[str, Mapping[str, Any]] = {}
    if servers:
        configs = _read(servers)
    elif single["command"] or single["url"]:
        configs = {"server": {key: value for key, value in single.items() if value is not None}}
    if not configs:
        raise ConfigError(
            "the tool 'mcp' needs a server: mcp(command='...', args=[...]), "
            "mcp(url='http://...') or mcp(servers={...})"
        )
    return {name: _checked(f"the MCP server {name!r}", configs[name]) for name in configs}


def _read(servers: Servers) -> dict[str, Mapping[str, Any]]:
    if isinstance(servers, Mapping):
        return dict(servers)
    if not isinstance(servers, (str, os.PathLike)):
        raise ConfigError(
            "servers must be {name: {command, ...} or {url, ...}} or a JSON file; "
            f"got {type(servers).__name__}"
        )
    try:
        return dict(json.loads(Path(servers).read_text(encoding="utf-8"))["mcpServers"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{servers} is not a JSON file with servers under 'mcpServers': "
            f"{type(error).__name__}: {error}"
        ) from None


def _checked(server: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the configuration without empty values."""
    is_mapping = isinstance(config, Mapping)
    if not is_mapping or bool(config.get("command")) == bool(config.get("url")):
        raise ConfigError(
            f"{server} needs either a command or a url; got {without_secrets(config)!r}"
        )
    kind = "command" if config.get("command") else "url"
    _check_keys(server, config, kind)
    check_oauth(server, config)
    checked = {key: config[key] for key in _KEYS[kind] if config.get(key)}
    for key, value in checked.items():
        name = f"{key} of {server}"
        if key == "args":
            checked[key] = string_list(name, value)
        elif key in ("env", "headers"):
            checked[key] = string_dict(name, value)
        elif key != "oauth" and not isinstance(value, (str, os.PathLike)):
            raise ConfigError(f"{name} must be a string, got {type(value).__name__}")
    return checked


def _check_keys(server: str, config: Mapping[str, Any], kind: str) -> None:
    """Raise `ConfigError` for a key that gem does not support, or not with this kind of server."""
    known = [key for keys in _KEYS.values() for key in keys]
    accepted = {*known, *_OTHER_CLIENTS, "type", "transport", "description"}
    unknown = [str(key) for key in config if key not in accepted]
    if unknown:
        raise ConfigError(
            f"{server} has unknown keys: {', '.join(unknown)}{did_you_mean(unknown, known)}. "
            f"Known keys: {', '.join(known)}"
        )
    for key, instead in _OTHER_CLIENTS.items():
        if config.get(key):
            raise ConfigError(f"{server} has {key}, which gem does not support; {instead}")
    wrong = [key for key in known if key not in _KEYS[kind] and config.get(key)]
    if wrong:
        raise ConfigError(
            f"{server} has a {kind} and {', '.join(wrong)}; a server with a {kind} takes only "
            f"{', '.join(_KEYS[kind])}: remove {', '.join(wrong)}"
        )
    for key in ("type", "transport"):
        if config.get(key) and config[key] not in _TRANSPORTS[kind]:
            raise ConfigError(
                f"{server} has a {kind}, for which {key} must be one of "
                f"{', '.join(map(repr, _TRANSPORTS[kind]))}; got {config[key]!r}"
            )
