"""Hold the commented templates of documents; :mod:`gkestimator.library.schemas.templating` reads them."""
