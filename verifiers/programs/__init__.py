"""Programs as answers: finding one in a response, reading the tests of a data set, and judging by them."""
