"""The systolic array: a square of cells; activations move east, partial sums south."""

from ..config import Config
from ..tiles import Chain, TileGrid
from .cell import MacCell

__all__ = ["mac_grid"]

LINKS = (
    Chain("x_east", "x", "east", first="x"),
    Chain("x_valid_east", "x_valid", "east", first="x_valid"),
    Chain("swap_east", "swap", "east", first="swap"),
    Chain("w_next", "w_west", "east", first="w_west"),
    Chain("w_east_valid", "w_west_valid", "east", first="w_west_valid"),
    Chain("w_next", "w_north", "south", first="w_north"),
    Chain("w_south_valid", "w_north_valid", "south", first="w_north_valid"),
    Chain("p_south", "p", "south", last="p"),
    Chain("p_valid", None, "south", last="p_valid"),
)


def mac_grid(config: Config) -> TileGrid:
    """Return the ``array`` x ``array`` grid of `MacCell`, as module ``mac_grid``.

    Ports: ``x``, ``x_valid``, ``swap``, ``w_west``, ``w_west_valid`` with one value per row;
    ``w_north``, ``w_north_valid``, ``p``, ``p_valid`` with one value per column. The partial sums
    that enter the top row are +0.0. The activation for array row r must arrive ``row_skew * r``
    cycles after that for row 0. The sum of column c leaves c cycles after that of column 0.
    """
    return TileGrid("mac_grid", "mac_cell", lambda: MacCell(config), config.array, config.array,
                    LINKS)
