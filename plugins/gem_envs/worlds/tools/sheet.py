"""Sheet: edit a generated workbook until it is as the goal describes."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

from gem_envs.worlds.names import invented_words
from gem_envs.worlds.tools.task import Goal, ToolTask
from gem_envs.worlds.tools.toolbox import CallError, Toolbox, function

__all__ = ["Sheet", "SheetTools"]

Cell = str | int | float

_POSITION = re.compile(r"([A-Z])([1-9]\d{0,2})")
_MOST_ROWS, _MOST_COLUMNS = 60, 20
_PRODUCT_ENDS = ("board", "cup", "lamp", "rack", "set", "stand")
_SUPPLIERS = ("Abel", "Berta", "Cesar", "Dora", "Emil")
_OPERATORS: dict[str, Callable[[list[float]], float]] = {
    "SUM": sum,
    "AVERAGE": lambda numbers: sum(numbers) / len(numbers),
    "MAX": max,
    "MIN": min,
    "COUNT": len,
}


class SheetTools(Toolbox):
    """A workbook of sheets; every function works on the sheet opened last."""

    def __init__(self, sheets: dict[str, list[list[Cell]]]) -> None:
        self.sheets = sheets
        self.notes: dict[str, str] = {}
        self.opened: str | None = None

    def state(self) -> Any:
        return {"sheets": self.sheets, "notes": self.notes}

    @property
    def grid(self) -> list[list[Cell]]:
        """The cells of the open sheet, row by row."""
        if self.opened is None:
            raise CallError("no sheet is open; call open_sheet first")
        return self.sheets[self.opened]

    def _place(self, position: str) -> tuple[int, int]:
        match = _POSITION.fullmatch(position.strip().upper())
        if match is None:
            raise CallError("a position is a letter and a number, such as B2")
        row, column = int(match[2]) - 1, ord(match[1]) - ord("A")
        if row >= len(self.grid) or column >= len(self.grid[0]):
            raise CallError(f"{position} is outside of the sheet")
        return row, column

    def _range(self, start: str, end: str) -> list[tuple[int, int]]:
        (top, left), (bottom, right) = self._place(start), self._place(end)
        if top > bottom or left > right:
            raise CallError("the range must begin at its upper left cell")
        return [
            (row, column) for row in range(top, bottom + 1) for column in range(left, right + 1)
        ]

    @function("opens a sheet by name, such as Sheet1")
    def open_sheet(self, name: str) -> str:
        if name not in self.sheets:
            raise CallError(f"there is no sheet {name[:20]!r}; there are: {', '.join(self.sheets)}")
        self.opened = name
        return f"You have opened {name}."

    @function("deletes a sheet by name")
    def del_sheet(self, name: str) -> str:
        if name not in self.sheets or len(self.sheets) == 1:
            raise CallError(f"{name[:20]!r} is not a sheet that can be deleted")
        del self.sheets[name]
        self.opened = None if self.opened == name else self.opened
        return f"{name} is deleted."

    @function("all values of the open sheet, row by row")
    def get_all_values(self) -> list[list[Cell]]:
        return [list(row) for row in self.grid]

    @function("the value of a cell, such as B2")
    def get_cell_value(self, position: str) -> Cell:
        row, column = self._place(position)
        return self.grid[row][column]

    @function("the values of a range, in one list")
    def get_range_values(self, start_position: str, end_position: str) -> list[Cell]:
        return [self.grid[r][c] for r, c in self._range(start_position, end_position)]

    @function("writes a value into a cell")
    def update_cell(self, position: str, value: str) -> str:
        row, column = self._place(position)
        self.grid[row][column] = _cell(value)
        return f"{position} is updated."

    @function("writes SUM, AVERAGE, MAX, MIN or COUNT of a range into a cell")
    def update_cell_by_formula(
        self, start_position: str, end_position: str, result_position: str, operator: str
    ) -> str:
        row, column = self._place(result_position)
        self.grid[row][column] = self.get_value_by_formula(start_position, end_position, operator)
        return f"{result_position} is updated."

    @function("SUM, AVERAGE, MAX, MIN or COUNT of a range")
    def get_value_by_formula(self, start_position: str, end_position: str, operator: str) -> float:
        if operator.upper() not in _OPERATORS:
            raise CallError(f"operator must be one of {', '.join(_OPERATORS)}")
        values = [self.grid[r][c] for r, c in self._range(start_position, end_position)]
        try:
            numbers = [float(value) for value in values if not isinstance(value, str)]
        except OverflowError as error:
            raise CallError("the range contains a number with too many digits") from error
        if not numbers:
            raise CallError("the range contains no numbers")
        return round(_OPERATORS[operator.upper()](numbers), 2)

    @function("inserts rows (lists of values) so that the first becomes row row_idx, from 1")
    def insert_rows(self, values_list: list, row_idx: int) -> str:  # type: ignore[type-arg]
        width = len(self.grid[0])
        if not 1 <= row_idx <= len(self.grid) + 1 or not values_list:
            raise CallError(f"row_idx must be 1 to {len(self.grid) + 1}, with a list of rows")
        if not all(isinstance(row, list) and len(row) == width for row in values_list):
            raise CallError(f"values_list must be a list of rows with {width} values each")
        if len(self.grid) + len(values_list) > _MOST_ROWS:
            raise CallError(f"a sheet has at most {_MOST_ROWS} rows")
        self.grid[row_idx - 1 : row_idx - 1] = [[_cell(v) for v in row] for row in values_list]
        return "The rows are inserted."

    @function("inserts a column of values (one list with a value per row) at col_idx, from 1")
    def insert_cols(self, values_list: list, col_idx: int) -> str:  # type: ignore[type-arg]
        width = len(self.grid[0])
        column = values_list[0] if len(values_list) == 1 else values_list
        if not isinstance(column, list) or len(column) != len(self.grid):
            raise CallError(f"values_list must have {len(self.grid)} values, one per row")
        if not 1 <= col_idx <= width + 1 or width >= _MOST_COLUMNS:
            raise CallError(f"col_idx must be 1 to {width + 1}")
        for row, value in zip(self.grid, column, strict=True):
            row.insert(col_idx - 1, _cell(value))
        return "The column is inserted."

    @function("deletes rows or columns; dimension is row or col, index_list the numbers from 1")
    def delete_batch_data(self, dimension: str, index_list: list) -> str:  # type: ignore[type-arg]
        size = len(self.grid) if dimension == "row" else len(self.grid[0])
        numbers = sorted({n for n in index_list if isinstance(n, int)}, reverse=True)
        if dimension not in ("row", "col") or len(numbers) != len(index_list):
            raise CallError("dimension must be row or col, and index_list different numbers")
        if not numbers or numbers[0] > size or numbers[-1] < 1 or len(numbers) >= size:
            raise CallError(f"index_list must contain some of the numbers 1 to {size}")
        for number in numbers:
            if dimension == "row":
                del self.grid[number - 1]
            else:
                for row in self.grid:
                    del row[number - 1]
        return "The data are deleted."

    @function("sorts the rows below the first by a column, from 1; order is asc or des")
    def sort_sheet_by_col(self, col_num: int, order: str) -> str:
        if not 1 <= col_num <= len(self.grid[0]) or order not in ("asc", "des"):
            raise CallError(f"col_num must be 1 to {len(self.grid[0])} and order asc or des")
        self.grid[1:] = sorted(
            self.grid[1:],
            key=lambda row: (isinstance(row[col_num - 1], str), row[col_num - 1]),
            reverse=order == "des",
        )
        return "The sheet is sorted."

    @function("writes a note on a cell")
    def update_note(self, position: str, content: str) -> str:
        self._place(position)
        self.notes[f"{self.opened}!{position.strip().upper()}"] = content.strip()
        return f"The note on {position} is updated."

    @function("the positions of the cells with a value")
    def filter_cells(self, query: str) -> list[str]:
        value = _cell(query)
        return [
            _name(r, c)
            for r, row in enumerate(self.grid)
            for c, cell in enumerate(row)
            if cell == value
        ]


def _cell(value: Any) -> Cell:
    """Return a value as a cell: a number if it looks like one."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    text = str(value).strip()[:200]
    if re.fullmatch(r"-?\d{1,12}", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?\d{1,12}\.\d{1,6}", text) else text


def _name(row: int, column: int) -> str:
    return f"{chr(ord('A') + column)}{row + 1}"


# Goals. The columns are Product, Supplier, Price, Stock.

_Calls = list[tuple[str, dict[str, Any]]]


def _opened(tools: SheetTools, rng: random.Random) -> tuple[str, list[list[Cell]], _Calls]:
    name = rng.choice(list(tools.sheets))
    return name, tools.sheets[name], [("open_sheet", {"name": name}), ("get_all_values", {})]


def _set_price(tools: SheetTools, rng: random.Random) -> Goal:
    name, grid, calls = _opened(tools, rng)
    row, price = rng.randint(1, len(grid) - 1), rng.randint(100, 999)
    calls.append(("update_cell", {"position": _name(row, 2), "value": str(price)}))
    return Goal(f"In {name}, set the price of {grid[row][0]} to {price}.", calls)


def _sort(tools: SheetTools, rng: random.Random) -> Goal:
    name, grid, calls = _opened(tools, rng)
    column, order = rng.choice([0, 2, 3]), rng.choice(["asc", "des"])
    calls.append(("sort_sheet_by_col", {"col_num": column + 1, "order": order}))
    way = "ascending" if order == "asc" else "descending"
    return Goal(f"In {name}, sort the rows by {grid[0][column]} in {way} order.", calls)


def _delete_supplier(tools: SheetTools, rng: random.Random) -> Goal:
    name, grid, calls = _opened(tools, rng)
    supplier = rng.choice(grid[1:])[1]
    numbers = [n for n, row in enumerate(grid, 1) if row[1] == supplier]
    calls.append(("delete_batch_data", {"dimension": "row", "index_list": numbers}))
    return Goal(f"In {name}, delete the rows of all products of the supplier {supplier}.", calls)


def _append(tools: SheetTools, rng: random.Random) -> Goal:
    name, grid, calls = _opened(tools, rng)
    row = ["Newboard", rng.choice(_SUPPLIERS), rng.randint(5, 90), rng.randint(1, 60)]
    calls.append(("insert_rows", {"values_list": [row], "row_idx": len(grid) + 1}))
    return Goal(
        f"In {name}, add a last row: product {row[0]}, supplier {row[1]}, price {row[2]}, "
        f"stock {row[3]}.",
        calls,
    )


def _value_column(tools: SheetTools, rng: random.Random) -> Goal:
    name, grid, calls = _opened(tools, rng)
    values = ["Value", *[int(row[2]) * int(row[3]) for row in grid[1:]]]
    calls.append(("insert_cols", {"values_list": [values], "col_idx": len(grid[0]) + 1}))
    return Goal(
        f"In {name}, add a last column with the header Value, which is price times stock of each "
        "product.",
        calls,
    )


def _total(tools: SheetTools, rng: random.Random) -> Goal:
    name, grid, calls = _opened(tools, rng)
    column, operator = rng.choice([2, 3]), rng.choice(["SUM", "AVERAGE", "MAX", "MIN"])
    calls.append(
        (
            "get_value_by_formula",
            {
                "start_position": _name(1, column),
                "end_position": _name(len(grid) - 1, column),
                "operator": operator,
            },
        )
    )
    numbers = [float(row[column]) for row in grid[1:]]
    words = {"SUM": "sum", "AVERAGE": "average", "MAX": "maximum", "MIN": "minimum"}
    return Goal(
        f"What is the {words[operator]} of the column {grid[0][column]} in {name}? "
        "Round to two decimals.",
        calls,
        round(_OPERATORS[operator](numbers), 2),
    )


def _note(tools: SheetTools, rng: random.Random) -> Goal:
    name, grid, calls = _opened(tools, rng)
    row = max(range(1, len(grid)), key=lambda n: float(grid[n][2]))
    calls.append(("update_note", {"position": _name(row, 0), "content": "expensive"}))
    text = (
        f'In {name}, write the note "expensive" on the name of the product with the highest price.'
    )
    return Goal(text, calls)


def _delete_sheet(tools: SheetTools, rng: random.Random) -> Goal:
    name, grid, calls = _opened(tools, rng)
    product = rng.choice(grid[1:])[0]
    calls.append(("del_sheet", {"name": name}))
    return Goal(f"Delete the sheet that contains the product {product}.", calls)


class Sheet(ToolTask):
    """A change of a workbook, or a question about it; see `ToolTask`."""

    topic = "a workbook"
    action_example = 'open_sheet with Action Input: {"name": "Sheet1"}'
    goals = (
        _set_price,
        _sort,
        _delete_supplier,
        _append,
        _value_column,
        _total,
        _note,
        _delete_sheet,
    )

    def draw_toolbox(self, rng: random.Random) -> SheetTools:
        products = iter(invented_words(rng, 40, _PRODUCT_ENDS))
        sheets: dict[str, list[list[Cell]]] = {}
        for number in range(1, 4):
            count = rng.randint(6, 9)
            # Different numbers, so that sorting has one result.
            prices, stocks = rng.sample(range(5, 99), count), rng.sample(range(1, 80), count)
            rows: list[list[Cell]] = [["Product", "Supplier", "Price", "Stock"]]
            for price, stock in zip(prices, stocks, strict=True):
                rows.append([next(products), rng.choice(_SUPPLIERS), price, stock])
            sheets[f"Sheet{number}"] = rows
        return SheetTools(sheets)
