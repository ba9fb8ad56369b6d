"""WebShop: search a generated catalogue, choose options and buy, with WebShop's reward."""
