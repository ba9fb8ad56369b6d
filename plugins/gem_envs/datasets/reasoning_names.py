"""The generators of reasoning-gym by topic, listed here because its import takes seconds.

A test compares the list with the installed package. The list omits `composite`, which mixes other
generators: gem has its own mixtures.
"""

from __future__ import annotations

__all__ = ["NAMES", "NONDETERMINISTIC", "TOPICS"]

TOPICS = {
    "algebra": {
        "complex_arithmetic": "add, subtract, multiply or divide complex numbers",
        "intermediate_integration": "integrate by substitution or by parts",
        "polynomial_equations": "find the real roots of a polynomial",
        "polynomial_multiplication": "multiply polynomials and simplify the product",
        "simple_equations": "solve a linear equation for one variable",
        "simple_integration": "find the antiderivative of a polynomial",
    },
    "algorithms": {
        "ab": "rewrite an A::B program until no rule applies",
        "base_conversion": "convert a number from one base to another",
        "binary_alternation": "count the swaps that make a binary string alternate",
        "binary_matrix": "give each cell's distance to the nearest 0 in a matrix",
        "caesar_cipher": "decrypt a Caesar cipher",
        "count_primes": "count the primes in an interval",
        "cryptarithm": "find the digits behind the letters of a sum",
        "game_of_life": "simulate Conway's Game of Life for some steps",
        "game_of_life_halting": "tell whether a Game of Life dies out in time",
        "graph_color": "colour the vertices of a graph",
        "group_anagrams": "group words that are anagrams of each other",
        "isomorphic_strings": "tell whether two strings are isomorphic",
        "jugs": "measure an amount of water with jugs",
        "letter_counting": "count a letter in a text",
        "letter_jumble": "restore the shuffled letters of words",
        "manipulate_matrix": "apply a series of operations to a matrix",
        "number_filtering": "keep or remove the numbers above or below a bound",
        "number_sorting": "sort numbers",
        "palindrome_generation": "form a palindrome from letters",
        "palindrome_partitioning": "split a string into palindromes in every way",
        "pool_matrix": "compute max or average pooling of a matrix",
        "ransom_note": "tell whether a note can be cut out of a magazine's letters",
        "rotate_matrix": "rotate a matrix by multiples of 90 degrees",
        "rotten_oranges": "count the minutes until all oranges of a grid are rotten",
        "sentence_reordering": "restore the order of the words of a sentence",
        "spell_backward": "spell a word backward",
        "spiral_matrix": "read a matrix in spiral order",
        "string_insertion": "insert characters into a string by patterns",
        "string_manipulation": "rewrite a string by rules until it repeats or stops",
        "string_splitting": "apply replacement rules to machines and parts",
        "string_synthesis": "apply combination rules to blocks",
        "word_ladder": "change one word into another, a letter at a time",
        "word_sequence_reversal": "reverse a list of words",
        "word_sorting": "sort words in ASCII order",
    },
    "arc": {
        "arc_1d": "find the rule of one-dimensional grids from examples (ARC)",
        "arc_agi": "find the rule of grids from examples (ARC-AGI)",
        "rearc": "find the rule of generated grids from examples (RE-ARC)",
    },
    "arithmetic": {
        "basic_arithmetic": "evaluate an expression with integers",
        "bitwise_arithmetic": "evaluate an expression with hexadecimal numbers and shifts",
        "calendar_arithmetic": "find weekdays and count days between dates",
        "chain_sum": "add and subtract a chain of integers",
        "count_bits": "count the 1 bits of a number",
        "decimal_arithmetic": "evaluate an expression with decimals",
        "decimal_chain_sum": "add and subtract a chain of decimals",
        "dice": "compute the odds of rolling at least a total with dice",
        "fraction_simplification": "reduce a fraction to lowest terms",
        "gcd": "find the greatest common divisor",
        "gsm_symbolic": "solve a word problem with new names and numbers (GSM-Symbolic)",
        "lcm": "find the least common multiple",
        "leg_counting": "count the legs of a list of animals",
        "number_format": "pick the largest or smallest of numbers in different notations",
        "power_function": "compute a power of a number",
        "prime_factorization": "factor a number into primes",
        "products": "multiply integers",
        "time_intervals": "compute the time between two clock times or dates",
    },
    "code": {
        "bf": "predict the output of a Brainf*ck program",
        "codeio": "predict the output or the input of a program (CodeI/O)",
    },
    "cognition": {
        "color_cube_rotation": "track the colours of a cube's sides through rotations",
        "figlet_font": "read a word drawn in ASCII art",
        "modulo_grid": "complete a grid that a rule with a modulus defines",
        "needle_haystack": "find one fact in a long text",
        "number_sequence": "continue a sequence of numbers",
        "rectangle_count": "count the rectangles of an ASCII drawing",
        "rubiks_cube": "solve a Rubik's cube",
    },
    "puzzle": {
        "boxnet": "plan the moves of agents that carry boxes to targets",
        "countdown": "reach a target number with given numbers",
        "emoji_mystery": "decode a sentence hidden in an emoji",
        "futoshiki": "fill a grid that has inequalities between cells",
        "kakurasu": "place 1s in a grid to match weighted sums",
        "knight_swap": "swap the knights of a small chess board",
        "mahjong_puzzle": "judge the last round of a mahjong-like card game",
        "maze": "count the steps of the shortest way through a maze",
        "mini_sudoku": "solve a 4x4 sudoku",
        "n_queens": "place the missing queens on a chess board",
        "puzzle24": "make 24 from four numbers",
        "rush_hour": "move cars until the red one can leave",
        "sokoban": "push boxes onto goals, all moves in one answer",
        "sudoku": "solve a 9x9 sudoku",
        "survo": "fill a matrix whose row and column sums are given",
        "tower_of_hanoi": "move a tower of disks, all moves in one answer",
        "tsumego": "capture stones in a Go position",
    },
    "geometry": {
        "advanced_geometry": "compute centres and angles of a triangle from coordinates",
        "simple_geometry": "find the missing angle of a polygon",
    },
    "graphs": {
        "course_schedule": "tell whether courses with prerequisites can be finished",
        "family_relationships": "tell how two members of a family are related",
        "largest_island": "find the area of the largest island in a grid",
        "path_star": "find the path to a goal in a star of paths",
        "quantum_lock": "reach a number with buttons that depend on a light",
        "shortest_path": "find the shortest path through a grid",
    },
    "induction": {
        "acre": "infer which objects activate a detector (ACRE)",
        "list_functions": "infer a function of lists from examples",
    },
    "logic": {
        "aiw": "count siblings, friends or colleagues (Alice in Wonderland)",
        "circuit_logic": "evaluate a logic circuit drawn in ASCII",
        "knights_knaves": "tell who lies and who tells the truth",
        "propositional_logic": "infer a conclusion from premises",
        "self_reference": "count the consistent truth values of statements about each other",
        "syllogism": "tell whether a conclusion follows from two statements",
        "zebra_puzzles": "deduce who lives in which house from clues",
    },
    "probability": {
        "coin_flip": "compute the probability of a number of heads",
    },
}
"""The summary of each generator, by topic and name."""
NAMES = tuple(sorted(name for generators in TOPICS.values() for name in generators))

NONDETERMINISTIC = frozenset(
    {"isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"}
)
"""Generators whose tasks depend on PYTHONHASHSEED, because they iterate over sets of strings."""
