from results.api import Recommendation as Recommendation
from results.api import Runs as Runs
from results.api import read_runs as read_runs
from results.errors import UserError as UserError
from results.schema.version import __version__ as __version__
