"""Fingerprints: hashes of the first observations of the frozen suites.

An id is absent if its first observations depend on the machine (installed documentation, a browser,
a shell). A changed fingerprint needs a new suite.
"""

from __future__ import annotations

__all__ = ["FINGERPRINTS"]

FINGERPRINTS = {
    "game:GuessTheNumber-v0-hard": "4a8a3c0e2fc7b958",
    "game:Mastermind-v0-easy": "2e8e8e79a10e1e39",
    "game:Minesweeper-v0-easy": "db5fffb903b77c19",
    "game:Wordle-v0-easy": "fb3e65992c94778c",
    "game:Hangman-v0-easy": "739728b584ae14ac",
    "game:Sudoku-v0-easy": "55cfb55236217844",
    "game:Sokoban-v0-easy": "6816ffe16a5f7589",
    "rg:chain_sum": "64fa5732948885a2",
    "rg:letter_counting": "6933ba614face79a",
    "rg:family_relationships": "dd6fbb38544045d7",
    "rg:number_sorting": "8b7871806c95157a",
    "math:Sample-v0": "62fb2d759a8b59ba",
    "qa:Sample-v0": "8c63b00d976a396c",
    "logic:Sample-v0": "d93fe2916c10b4ca",
    "code:Sample-v0": "9278a88516a8a9da",
    "babyai:GoToRedBall-v0": "87ac30fb5156d777",
    "babyai:PickupLoc-v0": "2769c54d9e48f285",
    "babyai:Unlock-v0": "69ca819665146a39",
    "maze:DoubleT-v0": "8cc8cc3202c805a7",
    "maze:Random-v0": "9d7b0ea52f82f0bf",
    "textcraft:TextCraft-v0-depth2": "f6fbd02cf93d6d9a",
    "sciworld:find-plant": "d257c8f0ce83cc0b",
    "sciworld:use-thermometer": "4d9f630e9dd4e744",
    "textworld:CoinCollector-v0": "831dccf10d830c9a",
    "textworld:CookingWorld-v0": "3bb9b7fd926086de",
    "household:PickAndPlace-v0": "48a9f959b0340403",
    "household:HeatAndPlace-v0": "f406c382cf51efbb",
    "sql:Query-v0-simple": "c09ae6afe93abd93",
    "sql:Query-v0-challenging": "03a33d2574b78b2a",
    "tool:Weather-v0": "1e4c9bd3b76ed3a7",
    "tool:Movie-v0": "01f5df91811dcff4",
    "tool:Academia-v0": "63ba6c856933748d",
    "tool:Sheet-v0": "713b7e1546c18a37",
    "tool:Todo-v0": "832efa5bdc44605d",
    "search:DeepSearch-v0": "949e45ae19065037",
    "search:MultiHop-v0-hops3": "261f7cab3ae1d6b5",
    "webshop:WebShop-v0": "2f7dc3685246df5d",
}
