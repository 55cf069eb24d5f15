//! Nothing: the tests are in `tests/`, apart from the others because of what their validator depends on.
