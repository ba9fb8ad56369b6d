"""Weather: questions about temperature, rain, snow, air and places, over generated weather."""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gem_envs.worlds.names import place_names
from gem_envs.worlds.tools.task import Goal, ToolTask
from gem_envs.worlds.tools.toolbox import CallError, Toolbox, function

__all__ = ["Weather", "WeatherTools"]

_CITIES = 14
_LONGEST_RANGE = 31
_LEVELS = (
    (20, "good"),
    (40, "fair"),
    (60, "moderate"),
    (80, "poor"),
    (100, "very poor"),
    (math.inf, "extremely poor"),
)


@dataclass(frozen=True)
class _City:
    name: str
    latitude: float
    longitude: float
    elevation: int


class WeatherTools(Toolbox):
    """Invented cities whose weather is a function of the seed, the city and the date."""

    def __init__(self, seed: int, cities: Sequence[_City], today: datetime.date) -> None:
        self.seed, self.cities, self.today, self.here = seed, cities, today, cities[0]

    def day(self, city: _City, date: datetime.date) -> dict[str, float]:
        """Return the weather of a city on a date."""
        rng = random.Random(f"{self.seed}/{city.name}/{date}")
        season = math.cos((date.timetuple().tm_yday - 200) / 365 * 2 * math.pi)
        mean = 27 - abs(city.latitude) * 0.5 + season * abs(city.latitude) * 0.3
        mean += rng.gauss(0, 3) - city.elevation / 200
        wet = rng.random() < 0.45
        fall = round(rng.expovariate(1 / 8), 1) if wet else 0.0
        return {
            "temperature_2m_max": round(mean + rng.uniform(2, 7), 1),
            "temperature_2m_min": round(mean - rng.uniform(2, 7), 1),
            "temperature_2m_mean": round(mean, 1),
            "rain_sum": fall if mean > 0 else 0.0,
            "snowfall_sum": fall if mean <= 0 else 0.0,
            "pm2_5": round(rng.uniform(3, 115), 1),
        }

    def city_at(self, latitude: float, longitude: float) -> _City:
        """Return the city within 50 km of a position."""
        for city in self.cities:
            if _kilometres(city.latitude, city.longitude, latitude, longitude) < 50:
                return city
        raise CallError("there is no weather station near this position")

    def _range(
        self, place: tuple[float, float], start: str, end: str, keys: Sequence[str], past: bool
    ) -> dict[str, Any]:
        city, first, last = self.city_at(*place), _date(start), _date(end)
        days = (last - first).days + 1
        if not 1 <= days <= _LONGEST_RANGE:
            raise CallError(f"the range must have 1 to {_LONGEST_RANGE} days")
        if past and last >= self.today:
            raise CallError("the end date must be before the current date; use a forecast")
        if not past and first < self.today:
            raise CallError("the start date must not be before the current date")
        dates = [first + datetime.timedelta(days=n) for n in range(days)]
        weather = [self.day(city, date) for date in dates]
        return {
            "city": city.name,
            "time": [date.isoformat() for date in dates],
            **{key: [day[key] for day in weather] for key in keys},
        }

    @function("the user's current date, YYYY-MM-DD")
    def get_user_current_date(self) -> str:
        return self.today.isoformat()

    @function("the user's current city")
    def get_user_current_location(self) -> str:
        return self.here.name

    @function("the position of a city")
    def get_latitude_longitude(self, name: str) -> dict[str, Any]:
        for city in self.cities:
            if city.name.casefold() == name.strip().casefold():
                return {"name": city.name, "latitude": city.latitude, "longitude": city.longitude}
        raise CallError(f"there is no city {name[:40]!r}")

    @function("temperatures (maximum, minimum, mean) of past days")
    def get_historical_temp(
        self, latitude: float, longitude: float, start_date: str, end_date: str
    ) -> dict[str, Any]:
        return self._range((latitude, longitude), start_date, end_date, _TEMPERATURES, True)

    @function("rain in mm of past days")
    def get_historical_rain(
        self, latitude: float, longitude: float, start_date: str, end_date: str
    ) -> dict[str, Any]:
        return self._range((latitude, longitude), start_date, end_date, ["rain_sum"], True)

    @function("snow in cm of past days")
    def get_historical_snow(
        self, latitude: float, longitude: float, start_date: str, end_date: str
    ) -> dict[str, Any]:
        return self._range((latitude, longitude), start_date, end_date, ["snowfall_sum"], True)

    @function("temperatures forecast from the current date on")
    def get_temp_forecast(
        self, latitude: float, longitude: float, start_date: str, end_date: str
    ) -> dict[str, Any]:
        return self._range((latitude, longitude), start_date, end_date, _TEMPERATURES, False)

    @function("rain forecast in mm from the current date on")
    def get_rain_forecast(
        self, latitude: float, longitude: float, start_date: str, end_date: str
    ) -> dict[str, Any]:
        return self._range((latitude, longitude), start_date, end_date, ["rain_sum"], False)

    @function("snow forecast in cm from the current date on")
    def get_snow_forecast(
        self, latitude: float, longitude: float, start_date: str, end_date: str
    ) -> dict[str, Any]:
        return self._range((latitude, longitude), start_date, end_date, ["snowfall_sum"], False)

    @function("air quality index (PM2.5) of past days")
    def get_historical_air_quality_index(
        self, latitude: float, longitude: float, start_date: str, end_date: str
    ) -> dict[str, Any]:
        return self._range((latitude, longitude), start_date, end_date, ["pm2_5"], True)

    @function("the level of an air quality index")
    def get_air_quality_level(self, air_quality_index: float) -> str:
        return next(level for most, level in _LEVELS if air_quality_index <= most)

    @function("the elevation of a position in metres")
    def get_elevation(self, latitude: float, longitude: float) -> int:
        return self.city_at(latitude, longitude).elevation

    @function("the distance between two positions in kilometres")
    def get_distance(
        self, latitude1: float, longitude1: float, latitude2: float, longitude2: float
    ) -> float:
        return round(_kilometres(latitude1, longitude1, latitude2, longitude2), 1)


_TEMPERATURES = ("temperature_2m_max", "temperature_2m_min", "temperature_2m_mean")


def _date(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text.strip())
    except ValueError:
        raise CallError("a date must be YYYY-MM-DD") from None


def _kilometres(lat1: float, lon1: float, lat2: float, lon2: float) -> float:
    """Return the distance on the sphere (haversine)."""
    a, b, d_lon = math.radians(lat1), math.radians(lat2), math.radians(lon2 - lon1)
    h = math.sin((b - a) / 2) ** 2 + math.cos(a) * math.cos(b) * math.sin(d_lon / 2) ** 2
    return 2 * 6371 * math.asin(math.sqrt(min(1.0, h)))


# Goals. Each needs the date or the position of a city first.

_Calls = list[tuple[str, dict[str, Any]]]


def _position(tools: WeatherTools, city: _City) -> tuple[_Calls, dict[str, float]]:
    calls: _Calls = [("get_latitude_longitude", {"name": city.name})]
    if city is tools.here:
        calls.insert(0, ("get_user_current_location", {}))
    return calls, {"latitude": city.latitude, "longitude": city.longitude}


def _where(tools: WeatherTools, city: _City) -> str:
    return "where I am" if city is tools.here else f"in {city.name}"


def _lowest_temperature(tools: WeatherTools, rng: random.Random) -> Goal:
    city, ago = rng.choice(tools.cities), rng.randint(1, 20)
    date = (tools.today - datetime.timedelta(days=ago)).isoformat()
    calls, place = _position(tools, city)
    calls.append(("get_user_current_date", {}))
    calls.append(("get_historical_temp", {**place, "start_date": date, "end_date": date}))
    when = "yesterday" if ago == 1 else f"{ago} days ago"
    answer = tools.day(city, datetime.date.fromisoformat(date))["temperature_2m_min"]
    return Goal(f"What was the lowest temperature {_where(tools, city)} {when}?", calls, answer)


def _total_rain(tools: WeatherTools, rng: random.Random) -> Goal:
    city, days = rng.choice(tools.cities), rng.randint(3, 10)
    dates = [tools.today - datetime.timedelta(days=n) for n in range(days, 0, -1)]
    calls, place = _position(tools, city)
    span = {"start_date": dates[0].isoformat(), "end_date": dates[-1].isoformat()}
    calls += [("get_user_current_date", {}), ("get_historical_rain", {**place, **span})]
    total = round(sum(tools.day(city, date)["rain_sum"] for date in dates), 1)
    return Goal(
        f"How many mm of rain fell {_where(tools, city)} in the {days} days before today?",
        calls,
        total,
    )


def _warmest_tomorrow(tools: WeatherTools, rng: random.Random) -> Goal:
    cities = rng.sample(list(tools.cities), 5)
    tomorrow = tools.today + datetime.timedelta(days=1)
    span = {"start_date": tomorrow.isoformat(), "end_date": tomorrow.isoformat()}
    calls: _Calls = [("get_user_current_date", {})]
    for city in cities:
        calls.append(("get_latitude_longitude", {"name": city.name}))
        place = {"latitude": city.latitude, "longitude": city.longitude}
        calls.append(("get_temp_forecast", {**place, **span}))
    best = max(cities, key=lambda city: tools.day(city, tomorrow)["temperature_2m_max"])
    names = ", ".join(city.name for city in cities)
    return Goal(
        f"Which of these cities will have the highest maximum temperature tomorrow: {names}?",
        calls,
        best.name,
    )


def _distance(tools: WeatherTools, rng: random.Random) -> Goal:
    first, second = rng.sample(list(tools.cities), 2)
    calls = _position(tools, first)[0] + _position(tools, second)[0]
    positions = {
        "latitude1": first.latitude,
        "longitude1": first.longitude,
        "latitude2": second.latitude,
        "longitude2": second.longitude,
    }
    answer = tools.get_distance(**positions)
    text = f"How many kilometres are between {first.name} and {second.name}? One decimal."
    return Goal(text, [*calls, ("get_distance", positions)], answer)


def _higher(tools: WeatherTools, rng: random.Random) -> Goal:
    first, second = rng.sample(list(tools.cities), 2)
    calls: _Calls = []
    for city in (first, second):
        before, place = _position(tools, city)
        calls += [*before, ("get_elevation", place)]
    return Goal(
        f"What is the difference in elevation between {first.name} and {second.name}, in metres?",
        calls,
        abs(first.elevation - second.elevation),
    )


def _worst_air(tools: WeatherTools, rng: random.Random) -> Goal:
    city, days = rng.choice(tools.cities), rng.randint(5, 12)
    dates = [tools.today - datetime.timedelta(days=n) for n in range(days, 0, -1)]
    calls, place = _position(tools, city)
    span = {"start_date": dates[0].isoformat(), "end_date": dates[-1].isoformat()}
    calls += [
        ("get_user_current_date", {}),
        ("get_historical_air_quality_index", {**place, **span}),
    ]
    worst = max(dates, key=lambda date: tools.day(city, date)["pm2_5"])
    return Goal(
        f"On which date of the {days} days before today was the air quality index "
        f"{_where(tools, city)} highest? Answer YYYY-MM-DD.",
        calls,
        worst.isoformat(),
    )


class Weather(ToolTask):
    """A question about the weather; see `ToolTask`."""

    topic = "questions about the weather"
    goals = (_lowest_temperature, _total_rain, _warmest_tomorrow, _distance, _higher, _worst_air)

    def draw_toolbox(self, rng: random.Random) -> WeatherTools:
        cities: list[_City] = []
        for number, name in enumerate(place_names(rng, _CITIES)):
            # Cities lie in different cells of a grid, so they are more than 50 km apart.
            latitude = -60 + 10 * (number % 12) + rng.uniform(0, 8)
            longitude = -170 + 24 * number + rng.uniform(0, 20)
            elevation = rng.randint(0, 1900)
            cities.append(_City(name, round(latitude, 4), round(longitude, 4), elevation))
        rng.shuffle(cities)
        today = datetime.date(rng.randint(2012, 2023), rng.randint(1, 12), rng.randint(1, 28))
        return WeatherTools(rng.getrandbits(32), cities, today)
