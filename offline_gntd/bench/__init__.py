"""Updates per second, compared with the machine's matrix products and with other libraries."""
