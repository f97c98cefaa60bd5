"""Hold the commented templates of documents; :mod:`gkestimator.schemas.templating` reads them."""
