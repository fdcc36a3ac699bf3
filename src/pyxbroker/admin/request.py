"""Requests whose `app` is an Application."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyxbroker.web import request as web_request

if TYPE_CHECKING:
    from pyxbroker.admin.app import Application

    Request = web_request.Request[Application]
else:
    Request = web_request.Request
