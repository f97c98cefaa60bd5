"""Cases that suites share are modules beside this file."""
