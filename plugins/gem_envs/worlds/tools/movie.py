"""Movie: questions about films and people, over a generated film database."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from gem_envs.worlds.names import FIRST_NAMES, invented_words, person_names, place_names
from gem_envs.worlds.tools.task import Goal, ToolTask
from gem_envs.worlds.tools.toolbox import CallError, Toolbox, function

__all__ = ["Movie", "MovieTools"]

_MOVIES, _PEOPLE = 40, 50
_ADJECTIVES = ("Amber", "Broken", "Crimson", "Distant", "Endless", "Frozen", "Golden", "Hidden")
_NOUNS = ("Bridge", "Crown", "Forest", "Garden", "Harbour", "Letter", "Mountain", "River", "Storm")
_GENRES = ("Adventure", "Comedy", "Crime", "Drama", "Fantasy", "Horror", "Romance", "Thriller")
_COUNTRIES = ("Brazil", "Canada", "France", "Ghana", "India", "Japan", "Norway", "Spain")
_KEYWORDS = ("betrayal", "childhood", "exile", "friendship", "heist", "island", "music", "winter")
_COMPANY_ENDS = (" Films", " Pictures", " Studios")


class MovieTools(Toolbox):
    """A film database with ids, which a model must look up."""

    def __init__(self, movies: Mapping[str, Any], people: Mapping[str, Any]) -> None:
        self.movies, self.people = movies, people

    def _movie(self, movie_id: str) -> Any:
        if movie_id not in self.movies:
            raise CallError(f"there is no movie with the id {movie_id[:20]!r}")
        return self.movies[movie_id]

    def _person(self, person_id: str) -> Any:
        if person_id not in self.people:
            raise CallError(f"there is no person with the id {person_id[:20]!r}")
        return self.people[person_id]

    @function("movies whose title contains the name, with their ids")
    def get_search_movie(self, movie_name: str) -> list[dict[str, str]]:
        text = movie_name.strip().casefold()
        return [
            {"id": id, "title": movie["title"], "overview": movie["overview"]}
            for id, movie in self.movies.items()
            if text and text in movie["title"].casefold()
        ][:10]

    @function("budget, genres, revenue, vote_average and release_date of a movie")
    def get_movie_details(self, movie_id: str) -> dict[str, Any]:
        movie = self._movie(movie_id)
        keys = ("title", "budget", "genres", "revenue", "vote_average", "release_date")
        return {key: movie[key] for key in keys}

    @function("the production companies of a movie")
    def get_movie_production_companies(self, movie_id: str) -> list[str]:
        return list(self._movie(movie_id)["companies"])

    @function("the production countries of a movie")
    def get_movie_production_countries(self, movie_id: str) -> list[str]:
        return list(self._movie(movie_id)["countries"])

    @function("the cast of a movie: ids, names and characters")
    def get_movie_cast(self, movie_id: str) -> list[dict[str, str]]:
        return [
            {"id": id, "name": self.people[id]["name"], "character": character}
            for id, character in self._movie(movie_id)["cast"].items()
        ]

    @function("the crew of a movie: ids, names and jobs")
    def get_movie_crew(self, movie_id: str) -> list[dict[str, str]]:
        return [
            {"id": id, "name": self.people[id]["name"], "job": job}
            for job, id in self._movie(movie_id)["crew"].items()
        ]

    @function("the keywords of a movie")
    def get_movie_keywords(self, movie_id: str) -> list[str]:
        return list(self._movie(movie_id)["keywords"])

    @function("alternative titles of a movie")
    def get_movie_alternative_titles(self, movie_id: str) -> list[str]:
        return list(self._movie(movie_id)["alternative_titles"])

    @function("people whose name contains the text, with their ids")
    def get_search_person(self, person_name: str) -> list[dict[str, str]]:
        text = person_name.strip().casefold()
        return [
            {"id": id, "name": person["name"]}
            for id, person in self.people.items()
            if text and text in person["name"].casefold()
        ][:10]

    @function("birthday and place_of_birth of a person")
    def get_person_details(self, person_id: str) -> dict[str, str]:
        person = self._person(person_id)
        return {key: person[key] for key in ("name", "birthday", "place_of_birth")}

    @function("the movies in which a person acted")
    def get_person_cast(self, person_id: str) -> list[dict[str, str]]:
        self._person(person_id)
        return [
            {"id": id, "title": movie["title"], "character": movie["cast"][person_id]}
            for id, movie in self.movies.items()
            if person_id in movie["cast"]
        ]

    @function("the movies in whose crew a person was")
    def get_person_crew(self, person_id: str) -> list[dict[str, str]]:
        self._person(person_id)
        return [
            {"id": id, "title": movie["title"], "job": job}
            for id, movie in self.movies.items()
            for job, worker in movie["crew"].items()
            if worker == person_id
        ]

    @function("imdb_id and twitter_id of a person")
    def get_person_external_ids(self, person_id: str) -> dict[str, str]:
        person = self._person(person_id)
        return {key: person[key] for key in ("imdb_id", "twitter_id")}


# Goals.

_Calls = list[tuple[str, dict[str, Any]]]


def _film(tools: MovieTools, rng: random.Random) -> tuple[str, Any, _Calls]:
    id = rng.choice(list(tools.movies))
    movie = tools.movies[id]
    return id, movie, [("get_search_movie", {"movie_name": movie["title"]})]


def _crew_name(tools: MovieTools, rng: random.Random) -> Goal:
    id, movie, calls = _film(tools, rng)
    job = rng.choice(list(movie["crew"]))
    name = tools.people[movie["crew"][job]]["name"]
    calls.append(("get_movie_crew", {"movie_id": id}))
    return Goal(f"Who was the {job.lower()} of the movie {movie['title']}?", calls, name)


def _profit(tools: MovieTools, rng: random.Random) -> Goal:
    id, movie, calls = _film(tools, rng)
    calls.append(("get_movie_details", {"movie_id": id}))
    return Goal(
        f"By how many dollars did the revenue of {movie['title']} exceed its budget? "
        "Give a negative number if it did not.",
        calls,
        movie["revenue"] - movie["budget"],
    )


def _birthplace_of_director(tools: MovieTools, rng: random.Random) -> Goal:
    id, movie, calls = _film(tools, rng)
    director = movie["crew"]["Director"]
    calls.append(("get_movie_crew", {"movie_id": id}))
    calls.append(("get_person_details", {"person_id": director}))
    place = tools.people[director]["place_of_birth"]
    return Goal(f"Where was the director of {movie['title']} born?", calls, place)


def _handle_of_character(tools: MovieTools, rng: random.Random) -> Goal:
    id, movie, calls = _film(tools, rng)
    actor, character = rng.choice(list(movie["cast"].items()))
    calls.append(("get_movie_cast", {"movie_id": id}))
    calls.append(("get_person_external_ids", {"person_id": actor}))
    return Goal(
        f"What is the Twitter id of the person who plays {character} in {movie['title']}?",
        calls,
        tools.people[actor]["twitter_id"],
    )


def _newest_film_of_actor(tools: MovieTools, rng: random.Random) -> Goal:
    while True:
        id, person = rng.choice(list(tools.people.items()))
        films = [(key, movie) for key, movie in tools.movies.items() if id in movie["cast"]]
        if len(films) > 1:
            break
    calls: _Calls = [
        ("get_search_person", {"person_name": person["name"]}),
        ("get_person_cast", {"person_id": id}),
        *[("get_movie_details", {"movie_id": key}) for key, _ in films],
    ]
    newest = max(films, key=lambda film: film[1]["release_date"])[1]
    text = f"What is the newest movie with {person['name']}? Give its title."
    return Goal(text, calls, newest["title"])


def _shared_film(tools: MovieTools, rng: random.Random) -> Goal:
    while True:
        _, movie, _ = _film(tools, rng)
        first, second = rng.sample(list(movie["cast"]), 2)
        shared = [m for m in tools.movies.values() if first in m["cast"] and second in m["cast"]]
        if len(shared) == 1:
            break
    names = [tools.people[id]["name"] for id in (first, second)]
    calls: _Calls = [("get_search_person", {"person_name": name}) for name in names]
    calls += [("get_person_cast", {"person_id": id}) for id in (first, second)]
    return Goal(f"In which movie did both {names[0]} and {names[1]} act?", calls, movie["title"])


class Movie(ToolTask):
    """A question about films; see `ToolTask`."""

    topic = "questions about movies"
    goals = (
        _crew_name,
        _profit,
        _birthplace_of_director,
        _handle_of_character,
        _newest_film_of_actor,
        _shared_film,
    )

    def draw_toolbox(self, rng: random.Random) -> MovieTools:
        places = place_names(rng, 30)
        people = {}
        for id, name in zip(
            rng.sample(range(1000, 9999), _PEOPLE), person_names(rng, _PEOPLE), strict=True
        ):
            people[str(id)] = {
                "name": name,
                "birthday": _draw_date(rng, 1930, 2000),
                "place_of_birth": f"{rng.choice(places)}, {rng.choice(_COUNTRIES)}",
                "imdb_id": f"nm{rng.randint(10**6, 10**7 - 1)}",
                "twitter_id": f"{name.split()[1].lower()}{rng.randint(10, 999)}",
            }
        titles = [f"The {a} {n}" for a in _ADJECTIVES for n in _NOUNS]
        companies = invented_words(rng, 12, _COMPANY_ENDS)
        movies = {
            str(id): _draw_movie(title, sorted(people), companies, rng)
            for id, title in zip(
                rng.sample(range(10_000, 99_999), _MOVIES), rng.sample(titles, _MOVIES), strict=True
            )
        }
        return MovieTools(movies, people)


def _draw_movie(
    title: str, people: list[str], companies: list[str], rng: random.Random
) -> dict[str, Any]:
    crew = dict(zip(("Director", "Producer", "Writer"), rng.sample(people, 3), strict=True))
    genres, keywords = rng.sample(_GENRES, 2), rng.sample(_KEYWORDS, 3)
    actors = rng.sample(people, rng.randint(3, 6))
    characters = rng.sample(FIRST_NAMES, len(actors))
    return {
        "title": title,
        "overview": f"{genres[0]}: {keywords[0]} and {keywords[1]}.",
        "genres": genres,
        "budget": rng.randint(1, 200) * 1_000_000,
        "revenue": rng.randint(1, 900_000) * 1000,
        "vote_average": round(rng.uniform(3, 9), 1),
        "release_date": _draw_date(rng, 1970, 2023),
        "companies": rng.sample(companies, rng.randint(1, 2)),
        "countries": rng.sample(_COUNTRIES, rng.randint(1, 2)),
        "keywords": keywords,
        "alternative_titles": [f"{title}: {rng.choice(_NOUNS)}"],
        "cast": dict(zip(actors, characters, strict=True)),
        "crew": crew,
    }


def _draw_date(rng: random.Random, first_year: int, last_year: int) -> str:
    return f"{rng.randint(first_year, last_year)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
