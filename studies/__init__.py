"""The studies of the papers and of our own claims: one file each, with settings, measurement and figure.

``python -m studies`` lists them, ``python -m studies NAME --quick`` runs one. They use the public names of
``notsodeep`` alone and are not part of the installed package.
"""
